"""Every way out of `specchat ask`: interrupts, and readers that leave."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pexpect
import pyte
import pytest

from specchat.app.sanitize import escape_controls
from specchat.engine import FinishReason, Round, read_trace
from tests.app.cli.commands.command import Done

SPECCHAT = Path(sys.executable).with_name("specchat")


def test_interrupting_keeps_the_text_and_the_whole_trace(ask: Callable[..., Done], tmp_path: Path) -> None:
    def interrupt_once(_: str) -> None:
        if not written:
            written.append(1)
            signal.raise_signal(signal.SIGINT)

    written: list[int] = []
    path = tmp_path / "trace.jsonl"
    done = ask("the", "--max-tokens", 230, "--trace", path, on_write=interrupt_once)
    assert (done.code, done.err) == (130, "")
    assert done.out.endswith("\n")
    *_, last = records = list(read_trace(path))
    assert last.reason is FinishReason.CANCELLED
    text = "".join(record.text for record in records if isinstance(record, Round)) + last.tail
    assert done.out == escape_controls(text).rstrip("\n") + "\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interrupt_ends_at_once(ask: Callable[..., Done]) -> None:
    def interrupt(_: str) -> None:
        signal.raise_signal(signal.SIGINT)

    done = ask("the", "--max-tokens", 230, on_write=interrupt)
    assert (done.code, done.err) == (130, "")


LOADS_FOR_EVER = """
import threading
from specchat.app.cli.main import main
from specchat.engine import Engine
Engine._make_worker = lambda _: threading.Event().wait(600)
main()
"""


def test_an_interrupt_while_loading_leaves_a_clean_line_and_does_not_wait(model: Path) -> None:
    arguments = ["-c", LOADS_FOR_EVER, "ask", "the", "--target", str(model)]
    child = pexpect.spawn(sys.executable, arguments, dimensions=(24, 80), timeout=120)
    child.expect_exact("starting the engine")
    child.sendintr()
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130
    screen = pyte.Screen(80, 24)
    pyte.ByteStream(screen).feed(child.before)
    assert "".join(screen.display).strip() in ("", "^C")


@pytest.mark.slow
def test_the_installed_command_ends_quietly_when_its_reader_leaves(model: Path) -> None:
    arguments = [str(SPECCHAT), "ask", "the", "--target", str(model), "--dtype", "float32", "--max-tokens", "200"]
    asking = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.read(asking.stdout.fileno(), 1)
    asking.stdout.close()
    assert asking.stderr.read() == b""
    asking.wait(60)
