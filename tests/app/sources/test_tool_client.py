"""Tools of real MCP servers: calls, and servers that hang, end, flood or send control characters."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from specchat.app.chat.tool_servers import tool_server
from specchat.app.errors import SettingsError
from specchat.app.settings.settings_file import load_settings
from specchat.app.sources.tool_client import LONGEST_RESULT, ToolClient, ToolServer, ToolServerError
from specchat.engine import JoinedThread
from tests.app.calling import served

SCRIPT = str(Path(__file__).parents[1] / "tool_server.py")
HERE = ToolServer("here", sys.executable, [SCRIPT], time_limit=60)
PARIS = '{"city": "Paris"}'


@pytest.fixture(scope="module")
def client() -> Iterator[ToolClient]:
    """The server of the script, through pipes."""
    with ToolClient([HERE]) as made:
        yield made
    assert not [thread for thread in JoinedThread.running() if thread.name.startswith("mcp")]


def test_tools_are_listed_and_called(client: ToolClient) -> None:
    tools = {tool.name: tool for tool in client.tools}
    assert tools["weather"].description == "Weather of a city."
    assert '"city"' in tools["weather"].parameters
    assert client.call("weather", PARIS) == "18 °C in Paris"
    assert client.call("weather", "{}").startswith("error: ")  # the server's own sentence
    assert client.call("fails", "{}") == "error: Error executing tool fails"
    assert client.call("nothing", "{}") == "error: there is no tool nothing"


def test_control_characters_are_taken_out(client: ToolClient) -> None:
    odd = next(tool for tool in client.tools if tool.name == "odd_name")
    assert "\x1b" not in odd.description
    assert client.call("odd_name", "{}") == "[2Jsafe"


def test_a_long_result_is_cut_and_a_flood_is_an_error(client: ToolClient) -> None:
    cut = client.call("flood", f'{{"characters": {LONGEST_RESULT + 8}}}')
    assert cut == "x" * LONGEST_RESULT + "\n(cut after 32,000 of 32,008 characters)"
    assert client.call("flood", '{"characters": 10000000}').startswith("error: the result of flood has 10,000,000 ")
    assert client.call("weather", PARIS) == "18 °C in Paris"


def test_a_server_that_ends_costs_one_call(client: ToolClient, capfd: pytest.CaptureFixture[str]) -> None:
    assert client.call("crash", "{}") == "error: the MCP server here ended without an answer: ␛[2Jthis is not JSON"
    assert client.call("weather", PARIS) == "18 °C in Paris"
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_server_that_hangs_costs_one_call() -> None:
    with ToolClient([ToolServer("slow", sys.executable, [SCRIPT], time_limit=5)]) as slow:
        assert slow.call("hang", "{}") == "error: the MCP server slow did not answer within 5 s"
        assert slow.call("weather", PARIS) == "18 °C in Paris"


@pytest.mark.parametrize(
    ("server", "why"),
    [
        (ToolServer("gone", "/no/such/program"), "cannot be started: /no/such/program does not exist"),
        (ToolServer("mute", "sleep", ["600"], time_limit=0.5), "did not answer within 0.5 s"),
        (ToolServer("ends", "true"), "ended without an answer"),
        (
            ToolServer("told", "sh", ["-c", "printf 'Trace\\nImportError: no \\033[2Jx\\n\\n' >&2; exit 1"]),
            "ended without an answer: ImportError: no ␛[2Jx",
        ),
        (ToolServer("closed", url="http://127.0.0.1:9/mcp", time_limit=20), "failed: "),
    ],
)
def test_a_server_that_cannot_be_reached_is_named(server: ToolServer, why: str) -> None:
    with pytest.raises(ToolServerError) as error:
        ToolClient([server])
    assert str(error.value).startswith(f"the MCP server {server.name} {why}")
    assert "\n" not in str(error.value)


def test_tools_of_two_servers_and_streamable_http() -> None:
    with served() as url:
        there = ToolServer("there", url=url, headers={"X-Key": "k"}, time_limit=60)
        with ToolClient([HERE, there]) as both:
            assert {"weather", "there_weather"} <= {tool.name for tool in both.tools}
            assert both.call("there_weather", PARIS) == "18 °C in Paris"
            both.remove("there")
            assert both.call("there_weather", PARIS) == "error: there is no tool there_weather"
            assert both.call("weather", PARIS) == "18 °C in Paris"


def test_servers_are_read_from_the_settings_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('[mcp.a]\ncommand = "x"\nargs = ["-y"]\nenv = {K = "v"}\ntime_limit = 5\n[mcp.b]\nurl = "http://h"')
    assert tool_server(file, "a") == ToolServer("a", "x", ["-y"], {"K": "v"}, time_limit=5.0)
    assert tool_server(file, "b") == ToolServer("b", url="http://h")
    assert load_settings(file)[1] is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", r"the MCP server a is not in .*: add \[mcp.a\]"),
        ('[mcp.b]\ncommand = "x"', "choose one of b"),
        ("[mcp.a]", "must have a command or a url"),
        ('[mcp.a]\ncommand = "x"\nurl = "http://y"', "only one of them"),
        ('[mcp.a]\ncommand = "x"\nargs = "y"', "mcp.a.args is 'y': it must be a list of texts"),
        ('[mcp.a]\ncommand = "x"\nenv = {K = 1}', "a table of texts"),
        ('[mcp.a]\ncommand = "x"\ntime_limit = 0', "a number of seconds above 0"),
        ('[mcp.a]\nurl = "nope"', "mcp.a.url is 'nope': it must be an address, such as http://"),
        ('[mcp.a]\nurl = "http://h:x"', "mcp.a.url is 'http://h:x': it must be"),
        ('[mcp.a]\ncmd = "x"', "mcp.a.cmd is not known: choose one of command, args"),
        ("[mcp\n", "cannot be read"),
    ],
)
def test_a_wrong_entry_is_named(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=why):
        tool_server(file, "a")
