"""`specchat replay`: what is refused before the screen is touched. The replay itself is tested with the interface."""

import subprocess
import sys
from pathlib import Path

from tests.app.cli.commands.command import command

TRACE = Path(__file__).parents[4] / "assets" / "traces" / "chat.jsonl"


def test_a_file_without_records_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text('{"record": "trace", "version": 1}\n')
    assert "holds no records" in command("replay", tmp_path / "trace.jsonl", terminal=True).sentence


def test_a_replay_needs_a_terminal() -> None:
    assert "is not a terminal" in command("replay", TRACE).sentence
    assert "is not a terminal" in command("replay", TRACE, stdin=b"", terminal=True).sentence


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
    done = subprocess.run([sys.executable, "-c", code, TRACE], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("SpecChat\n", "", 0)
