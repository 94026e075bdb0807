"""The command line as a whole: one sentence for every mistake, and nothing heavy before it is needed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.cli.commands.command import command

SPECCHAT = Path(sys.executable).with_name("specchat")
SERVER = ("uvicorn", "starlette", "prometheus_client", "httpx2")
HEAVY = (*SERVER, "torch", "transformers", "tokenizers", "textual", "pydantic", "rich", "typer")


@pytest.mark.parametrize("arguments", ["", "--gamma 3"])
def test_the_chat_needs_a_terminal(arguments: str) -> None:
    for done in (command(*arguments.split(), stdin=b"hello"), command(*arguments.split(), terminal=False)):
        assert "is not a terminal, and the interface needs one" in done.sentence
        assert "specchat ask" in done.sentence


@pytest.mark.parametrize("arguments", ["", "ask hello"])
def test_another_system_is_refused(arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "win32")
        assert command(*arguments.split()).sentence.startswith("specchat runs on Linux and macOS: on Windows")


def test_sentences_are_one_line_and_harmless_whatever_was_typed() -> None:
    sentence = command("replay", "no\x1b[31m\nsuch\x07 file").sentence
    assert "no␛[31m such␇ file cannot be read as a trace" in sentence


def test_the_version_is_the_installed_one() -> None:
    from importlib.metadata import version

    assert command("--version").out == f"specchat {version('specchat')}\n"


@pytest.mark.parametrize("arguments", ["--help", "ask --help", "models --help"])
def test_help_is_plain_text_on_stdout(arguments: str) -> None:
    done = command(*arguments.split())
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Usage: specchat")
    assert "╭" not in done.out


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("specchat.app.cli.main", HEAVY), ("specchat.app.cli.command_line", HEAVY[:-1]),
        ("specchat.app.cli.commands.ask", HEAVY), ("specchat.app.cli.commands.models", HEAVY[:-1]),
        ("specchat.app.storage.store", HEAVY),
    ],
)  # fmt: skip
def test_importing_a_command_loads_nothing_heavy(module: str, unwanted: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print([m for m in {unwanted!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_a_reader_that_leaves_early_is_no_error() -> None:
    listing = subprocess.Popen([SPECCHAT, "ask", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    listing.stdout.close()
    assert listing.stderr.read() == b""
    listing.wait(60)


FULL = (2, "specchat: reading or writing data failed: No space left on device\n")


@pytest.mark.parametrize(
    ("redirection", "variable", "expected"),
    [
        (">/dev/full", "", FULL),
        (">/dev/full", "PYTHONUNBUFFERED=1", FULL),
        (">&-", "", (0, "")),
        (">/dev/null", "PYTHONIOENCODING=cp1252", (0, "")),
    ],
)
def test_a_failed_write_is_no_stack_trace(redirection: str, variable: str, expected: tuple[int, str]) -> None:
    line = f"exec env {variable} {SPECCHAT} theory --alpha 0.5 {redirection}"
    done = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == expected


def test_a_replay_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['transformers'] = None  # importing them now fails\n"
        "from textual.app import App\n"
        "App.run = lambda self: print(type(self).__name__)\n"
        "for stream in (sys.stdin, sys.stdout): stream.isatty = lambda: True\n"
        "from specchat.app.cli.main import run\n"
        "sys.exit(run(['replay', sys.argv[1]]))\n"
    )
    trace = Path(__file__).parents[3] / "assets" / "traces" / "chat.jsonl"
    done = subprocess.run([sys.executable, "-c", code, trace], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("SpecChat\n", "", 0)
