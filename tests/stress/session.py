"""The numbered app in a terminal, and what must be stored of what it showed."""

import re
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.interface.running import ENTER, NEW_CHAT
from specchat.app.storage.store import Store, StoredMessage
from specchat.engine import Finished, Round, from_json
from tests.terminal import Terminal

_WORD = re.compile(r"w(\d{5})")


def start(home: Path, *arguments: object, before: Sequence[object] = (), **options: Any) -> Terminal:
    """The app, ready to be asked; `before` is what runs it, such as `setsid`."""
    program = (*before, sys.executable, "-m", "tests.stress.numbered", *arguments)
    terminal = Terminal(*program, SPECCHAT_HOME=str(home), **options)
    terminal.wait_for("ready: ask anything")
    return terminal


def ask(terminal: Terminal, text: str) -> None:
    """Send a prompt, and wait for the first round of its reply."""
    terminal.type(text)
    terminal.wait_for(text.split()[-1])
    terminal.type(ENTER)
    terminal.wait(lambda _: shown_round(terminal) >= 0, 60, "first round")


def ask_each(terminal: Terminal, texts: Sequence[str], until: str = "") -> None:
    """Send each prompt in a separate chat; `until` is what each reply shows before the next one is sent."""
    for number, text in enumerate(texts):
        if number:
            terminal.type(NEW_CHAT)
            terminal.wait_for("new chat")
        ask(terminal, text)
        terminal.wait_for(until)


def shown_round(terminal: Terminal) -> int:
    """The highest number of a round on the screen; -1 if none."""
    return max(map(int, _WORD.findall(terminal.text)), default=-1)


def draw_for(terminal: Terminal, seconds: float) -> None:
    """Let the app draw for this long."""
    terminal.wait_quiet(quiet_s=seconds + 1, seconds=seconds)


def stored_messages(home: Path) -> list[list[StoredMessage]]:
    """Messages of each chat, newest first."""
    with Store(home / "data" / "specchat.db") as store:
        assert store.notice is None, store.notice
        return [store.messages(chat.id) for chat in store.chats()]


def lost(home: Path, prompts: list[str], shown: int, replies: int = 1, *, all_shown: bool = False) -> list[str]:
    """What is lost or damaged.

    Args:
        home: SPECCHAT_HOME.
        prompts: of all chats; that of the first one was on screen.
        shown: the number of its last round on screen; -1 for none.
        replies: how many each prompt has.
        all_shown: whether all chats must have as many rounds.
    """
    with closing(sqlite3.connect(home / "data" / "specchat.db")) as db:
        verdict = db.execute("PRAGMA integrity_check").fetchone()[0]
    if verdict != "ok":
        return [f"integrity_check: {verdict}"]
    chats = stored_messages(home)
    found = [messages[0].content for messages in chats]
    if sorted(found) != sorted(prompts):
        return [f"chats {found} of {prompts}"]
    wrong = []
    for messages in chats:
        answers = messages[1:]
        if len(answers) != replies:
            wrong.append(f"{len(answers)} of {replies} replies")
        for answer in answers:
            records = [from_json(line) for line in answer.events]
            text = "".join(
                r.tail if isinstance(r, Finished) else r.text for r in records if isinstance(r, Finished | Round)
            )
            numbers = [record.number for record in records if isinstance(record, Round)]
            if numbers != list(range(len(numbers))) or text != answer.content:
                wrong.append(f"stored rounds {numbers} do not make the stored text")
            if (all_shown or messages[0].content == prompts[0]) and (numbers or [-1])[-1] < shown:
                wrong.append(f"round {shown} was on screen, round {(numbers or [-1])[-1]} is the last that is stored")
    return wrong
