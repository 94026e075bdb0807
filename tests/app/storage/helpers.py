"""What the tests of the store share."""

import subprocess
import sys

from hypothesis import strategies as st

from specchat.app.storage.store import Store
from specchat.engine import message_parts

clean = st.text(st.characters(codec="utf-8"))


class Clock:
    """A clock that moves on by a second with every look."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def add_turn(
    store: Store,
    chat: int,
    prompt: str,
    reply: str,
    *lines: str,
    parent: int | None = None,
    model: str = "",
    reason: str | None = "eos",
) -> int:
    """Add a prompt and its reply, whose trace has these lines; without a reason it has not ended. The reply's row."""
    asked = store.add_message(chat, "user", prompt, parent=parent)
    row = store.add_message(chat, "assistant", "", parent=asked, model=model)
    store.append_rounds(row, message_parts(reply), lines)
    if reason is not None:
        store.finish_message(row, reason)
    return row


def child(code: str, *arguments: object) -> list[str]:
    """The command line of a Python program that has the store."""
    imports = "import os, sys, time\nfrom pathlib import Path\nfrom specchat.app.storage.store import Store\n"
    imports += "from specchat.engine import message_parts\n"
    head = imports + "path = Path(sys.argv[1])\n"
    return [sys.executable, "-c", head + code, *map(str, arguments)]


def killed_after(statements: int, code: str, path: object) -> None:
    """Run a program that kills itself, without any clean-up, after a number of statements of a database.

    Args:
        statements: the number.
        code: the program; it calls `watch(db, counts)`, where `counts` says of a statement whether it counts.
        path: the file of the store.
    """
    watch = (
        "import signal\n"
        "left = int(sys.argv[2])\n"
        "def watch(db, counts):\n"
        "    def trace(statement):\n"
        "        global left\n"
        "        left -= counts(statement)\n"
        "        if left < 0:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "    db.set_trace_callback(trace)\n"
    )
    done = subprocess.run(child(watch + code, path, statements), timeout=60, check=False)
    assert done.returncode == -9
