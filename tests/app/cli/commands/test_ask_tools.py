"""`specchat ask --mcp`: calls are made after they were allowed, and the reply continues with their results."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken

from specchat.app.chat.exchange import as_json, as_markdown, read_chats
from specchat.app.chat.parts import joined
from specchat.app.chat.stored_conversation import stored_conversation
from specchat.app.chat.web_page import chat_data, render
from specchat.app.cli.commands import ask as ask_module
from specchat.app.paths import database_file, settings_file
from specchat.app.storage.store import Store
from specchat.engine import Engine, EngineConfig, PartKind, Request, read_trace
from tests.app.calling import served
from tests.app.cli.commands.command import Done, command
from tests.app.server.test_tools import TOOLS
from tests.app.sources.servers.recorded import CHAT, PLAIN, Recorded, chunk, last_chunk
from tests.engine.tiny import EOS, assemble_loaded, reciting_model, tiny_tokenizer

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'
TEMPLATE = TOOLS.replace("[assistant]", "{% if messages[-1].role == 'tool' %}={% else %}[assistant]{% endif %}")
ANSWER = "It is sunny."


def calling_engine(*, always: bool = False) -> Engine:
    """An engine whose model calls the weather and answers after the result, or calls again if it does so always."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken(piece, special=False, normalized=False) for piece in (CALL, ANSWER)])
    tokenizer.chat_template = TOOLS if always else TEMPLATE
    bracket, call, equals, answer = (tokenizer.encode(piece)[0] for piece in ("]", CALL, "=", ANSWER))
    model = reciting_model(tokenizer, [bracket, call, equals, answer])
    with torch.no_grad():
        model.model.lm_head.weight[EOS] += 2 * model.model.model.embed_tokens.weight[call]  # ends after the call

    def assemble(config: EngineConfig, progress: Any) -> Any:  # noqa: ARG001
        return assemble_loaded(config, model, None, head=None, more=())

    return Engine(EngineConfig("tiny", Path(), context=4096, slots=1), assemble)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a server."""
    with served() as address:
        yield address


@pytest.fixture(autouse=True)
def server(url: str) -> None:
    """The settings name the server."""
    file = settings_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f'[mcp.here]\nurl = "{url}"\n')


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Runs `specchat ask` on that model with that server."""
    monkeypatch.setattr(ask_module, "make_engine", lambda _: calling_engine())

    def run(*arguments: object, **about: Any) -> Done:
        return command("ask", "hi", "--mcp", "here", "--drafter", "none", *arguments, **about)

    return run


def results(trace: Path) -> list[str]:
    """The results in the last request of a trace."""
    requests = [each for each in read_trace(trace) if isinstance(each, Request)]
    return [part.text for message in requests[-1].messages for part in message.parts_of(PartKind.RESULT)]


def test_an_allowed_tool_is_called_without_a_terminal(asked: Callable[..., Done], tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    done = asked("--allow-tools", "weather", "--trace", trace, stdin=b"")
    assert (done.code, done.out) == (0, f"{ANSWER}\n")
    assert done.err == 'specchat: the model calls weather\n  city: "Paris"\n'
    assert results(trace) == ["18 °C in Paris"]
    offered = [each.tools for each in read_trace(trace) if isinstance(each, Request)]
    assert [[tool.name for tool in tools] for tools in offered] == [["weather"]] * 2  # the others cannot be allowed


def test_the_terminal_is_asked(asked: Callable[..., Done], tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    done = asked("--trace", trace, typed="what\nn\n", terminal=True)
    assert (done.code, ANSWER in done.out) == (0, True)
    assert done.err.count("call weather? o once, a always, n never: ") == 2  # the first line was no answer
    assert results(trace) == ["error: the user declined this call"]


def test_another_server_calls_and_gets_the_results(tmp_path: Path) -> None:
    function, trace = {"name": "weather", "arguments": '{"city": "Paris"}'}, tmp_path / "trace"
    call = {"id": "call00001", "type": "function", "function": function}
    delta = {"tool_calls": [{"index": 0, **call}]}
    called = [chunk(choice={"delta": delta}), chunk(None, "tool_calls"), last_chunk(9, 5)]

    def reply(body: Any) -> list[Any]:
        return [chunk(ANSWER), chunk(None, "stop")] if body["messages"][-1]["role"] == "tool" else called

    with Recorded(PLAIN, {CHAT: reply}) as other:
        options = ("--allow-tools", "weather", "--save", "--trace", trace)
        done = command("ask", "hi", "--attach", other.url, "--mcp", "here", *options, stdin=b"")
        (_, first), (_, second) = other.asked
    assert (done.code, done.out) == (0, f"{ANSWER}\n")
    assert [tool["function"]["name"] for tool in first["tools"]] == ["weather"]
    assert first["tools"] == second["tools"]
    assert second["messages"][1:] == [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call00001", "content": "18 °C in Paris"},
    ]
    assert results(trace) == ["18 °C in Paris"]


def test_json_has_an_object_for_each_reply(asked: Callable[..., Done]) -> None:
    done = asked("--allow-tools", "weather", "--json", stdin=b"")
    first, last = map(json.loads, done.out.splitlines())
    (call,) = first["calls"]
    assert (call["name"], json.loads(call["arguments"])) == ("weather", {"city": "Paris"})
    assert last["text"] == ANSWER
    assert "calls" not in last


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ((), "--mcp asks before each call and needs a terminal: name the tools with --allow-tools A,B"),
        (("--allow-tools", "nothing"), "there is no tool nothing: choose from weather, hang"),
        (("--mcp", "other", "--allow-tools", "weather"), "the MCP server other is not in"),
        (("--beams", "2"), "--mcp does not go with --beams"),
    ],
)
def test_what_does_not_go_together_is_refused(asked: Callable[..., Done], options: tuple[str, ...], why: str) -> None:
    assert asked(*options, stdin=b"").sentence.startswith(why)


def test_a_stored_chat_has_calls_and_results(asked: Callable[..., Done]) -> None:
    assert asked("--allow-tools", "weather", "--save", stdin=b"").code == 0
    store = Store(database_file())
    (chat,) = store.chats()
    kept = stored_conversation(chat, store.messages(chat.id))
    question, results = kept.prompts
    first, last = question.reply, results.reply
    assert first is not None
    assert last is not None
    assert [json.loads(call.text) for call in first.calls] == [{"city": "Paris"}]
    assert [(part.text, part.call_id) for part in results.results] == [("18 °C in Paris", first.calls[0].call_id)]
    assert last.text == ANSWER
    assert kept.messages(results)[1:] == (first.as_message, results.as_message)
    assert store.prompts(9) == ["hi"]  # results are none
    written = as_markdown(kept, "m")
    assert 'calls weather:\n```\n{"city": "Paris"}\n```' in written
    assert "## Results\n\nfrom weather:\n```\n18 °C in Paris\n```" in written
    page = render(chat_data(kept))
    assert "▸ weather 18 °C in Paris" in page
    assert '→ weather {\\"city\\": \\"Paris\\"}' in page
    ((_, again),), problems = read_chats(as_json(kept, "m"))
    assert not problems
    assert [each.parts for each in again] == [tuple(joined(each.parts)) for each in store.messages(chat.id)]
    asked("--allow-tools", "weather", "--continue", stdin=b"")
    prompts = [each for each in store.messages(chat.id) if each.role == "user"]
    assert [len(each.parts) for each in prompts] == [1] * 4


def test_a_model_without_tools_is_refused_before_a_server_starts(ask: Callable[..., Done]) -> None:
    settings_file().write_text('[mcp.here]\ncommand = "/no/such/program"\n')
    sentence = ask("hi", "--mcp", "here", "--allow-tools", "weather", stdin=b"").sentence
    assert "cannot call tools" in sentence
    assert command("ask", "hi", "--allow-tools", "weather", stdin=b"").sentence.startswith("--allow-tools goes with")
