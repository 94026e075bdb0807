"""Input that no keyboard gives: bytes in pieces of every size, and the app in a real pseudo-terminal."""

import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specchat.app.storage.store import Store
from specchat.app.ui.terminal_driver import PASTE_END, PASTE_START, InputDecoder
from tests.terminal import Terminal

ENTER, QUIT, NEW_CHAT, CHATS, RENAME = "\r", "\x11", "\x0e", "\x02", "r"


PROGRAM = (sys.executable, "-m", "tests.stress.numbered", "--rounds", 3)


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


def test_keys_bytes_that_are_no_text_and_control_characters_of_a_paste(tmp_path: Path) -> None:
    with Terminal(*PROGRAM, SPECCHAT_HOME=str(tmp_path)) as terminal:
        terminal.wait_for("ready: ask anything")
        terminal.type(b"typed \xff here ", "typed \ufffd here")
        terminal.type(b"\x1b[200~pasted \xfe\xc3 there\x1b[201~", "pasted \ufffd\ufffd there")
        terminal.type("\x1b[D\x1b[DX", "theXre")  # left, left: typed text does not overtake them
        terminal.type(ENTER, "w00002")
        terminal.type("\x1bOA", "theXre")  # up: the prompt before
        terminal.type(NEW_CHAT, "new chat")
        terminal.type(b"\x1b[200~abc\x01def\x07\tg \x1b[31mr \xc2\x9b1mc1 \x1b]0;t\x07 end\x1b[201~", "end")
        terminal.type(ENTER, "w00002")
        terminal.type(CHATS, "u undo")
        terminal.type(RENAME, "rename chat")
        terminal.type(b"\x1b[200~a\x1b]0;b\x07c \x1b[2Jd\xc2\x85\x1b[201~", "a]0;bc [2Jd")
        terminal.type(ENTER)
        terminal.wait(lambda now: "rename chat" not in now.text, 20, "end of the dialog")
        assert terminal.leave(QUIT) == 0
    pasted, typed = stored(tmp_path)
    assert typed[1] == ["typed \ufffd here pasted \ufffd\ufffd theXre"]
    assert pasted == ("a]0;bc [2Jd", ["abcdef\tg [31mr 1mc1 ]0;t end"])


def decoded(*pieces: bytes) -> str:
    decoder = InputDecoder()
    return "".join(decoder.feed(piece) for piece in pieces)


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        (b"a\xffb", "a\ufffdb"),
        ("né".encode(), "né"),
        (b"\x1b[A\x1b", "\x1b[A\x1b"),
        (b"\x01\x1b[200~abc\x01def\x07\tg \x1b[31mr\x1b[201~\x01", "\x01\x1b[200~abcdef\tg [31mr\x1b[201~\x01"),
        (b"\x1b[200~one\r\ntwo\xc2\x9b31m\x1b[201~", "\x1b[200~one\r\ntwo31m\x1b[201~"),
        (b"\x1b[200~\x1b\x1b[201~x", "\x1b[200~\x1b[201~x"),
        (b"\x1b[200~\xff\xfe\x1b[201~", "\x1b[200~\ufffd\ufffd\x1b[201~"),
    ],
)
def test_in_one_piece_and_byte_by_byte(typed: bytes, text: str) -> None:
    assert decoded(typed) == decoded(*(bytes([byte]) for byte in typed)) == text


@given(st.lists(st.binary(max_size=9) | st.sampled_from([b"\x1b[200~", b"\x1b[201~", b"\x1b[20", b"1~"]), max_size=12))
def test_pieces_do_not_matter_and_no_paste_has_a_control_character(pieces: list[bytes]) -> None:
    whole = b"".join(pieces) + b"\x1b[201~"
    text = decoded(whole)
    assert decoded(*pieces, b"\x1b[201~") == text
    for part in text.split(PASTE_START)[1:]:
        pasted = part.partition(PASTE_END)[0]
        assert not [c for c in pasted if unicodedata.category(c) == "Cc" and c not in "\t\n\r"]


def test_alt_and_a_digit_are_a_key_and_pasted_digits_are_not() -> None:
    from textual._xterm_parser import XTermParser
    from textual.events import Key

    keys = [event.key for event in XTermParser().feed(InputDecoder().feed(b"\x1b2")) if isinstance(event, Key)]
    assert keys == ["alt+2"]
    assert decoded(b"\x1b[200~\x1b2\x1b[201~") == "\x1b[200~2\x1b[201~"
