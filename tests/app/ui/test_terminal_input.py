"""The app in a real pseudo-terminal: input that no keyboard gives, and a terminal that goes away."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from specchat.app.chat.exchange import file_stem
from specchat.app.storage.store import Store
from tests.terminal import Terminal

ENTER, QUIT, NEW_CHAT, CHATS, RENAME = "\r", "\x11", "\x0e", "\x02", "r"


PROGRAM = (sys.executable, "-m", "tests.stress.numbered", "--rounds", 3)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    with Terminal(*PROGRAM, SPECCHAT_HOME=str(tmp_path)) as terminal:
        terminal.wait_for("ready: ask anything")
        yield terminal


def stored(home: Path) -> list[tuple[str, list[str]]]:
    """Title and prompts of every chat."""
    with Store(home / "data" / "specchat.db") as store:
        return [(c.title, [m.content for m in store.messages(c.id) if m.role == "user"]) for c in store.chats()]


def test_text_and_enter_typed_while_the_program_starts_are_sent(tmp_path: Path) -> None:
    with Terminal(*PROGRAM, SPECCHAT_HOME=str(tmp_path)) as terminal:
        terminal.type("typed early\r")
        terminal.wait_for("w00002")
        assert terminal.leave(QUIT) == 0
    assert stored(tmp_path) == [("typed early", ["typed early"])]


def test_bytes_that_are_no_text_and_control_characters_of_a_paste(terminal: Terminal, tmp_path: Path) -> None:
    terminal.type(b"typed \xff here ", "typed \ufffd here")
    terminal.type(b"\x1b[200~pasted \xfe\xc3 there\x1b[201~", "pasted \ufffd\ufffd there")
    terminal.type(ENTER, "w00002")
    terminal.type(NEW_CHAT, "new chat")
    terminal.type(b"\x1b[200~abc\x01def\x07\tg \x1b[31mr \xc2\x9b1mc1 \x1b]0;t\x07 end\x1b[201~", "end")
    terminal.type(ENTER, "w00002")
    assert terminal.leave(QUIT) == 0
    pasted, typed = stored(tmp_path)
    assert typed[1] == ["typed \ufffd here pasted \ufffd\ufffd there"]
    assert pasted == ("abcdef g [31mr 1mc1 ]0;t end", ["abcdef\tg [31mr 1mc1 ]0;t end"])
    assert file_stem("abcdef g [31mr 1mc1 ]0;t end") == "abcdef-g-31mr-1mc1-0-t-end"


def test_keys_work_and_a_pasted_title_has_no_control_characters(terminal: Terminal, tmp_path: Path) -> None:
    terminal.type("Lisbon", "Lisbon")
    terminal.type("\x1b[D\x1b[DX", "LisbXon")  # left, left: typed text does not overtake them
    terminal.type(ENTER, "w00002")
    terminal.type("\x1bOA", "LisbXon")  # up: the prompt before
    terminal.type(CHATS, "u undo")
    terminal.type(RENAME, "rename chat")
    terminal.type(b"\x1b[200~a\x1b]0;b\x07c \x1b[2Jd\xc2\x85\x1b[201~", "a]0;bc [2Jd")
    terminal.type(ENTER)
    terminal.wait(lambda now: "rename chat" not in now.text, 20, "end of the dialog")
    assert terminal.leave(QUIT) == 0
    assert stored(tmp_path) == [("a]0;bc [2Jd", ["LisbXon"])]
