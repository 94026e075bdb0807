"""Bytes as a terminal sends them, in pieces of every size."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specchat.app.ui.terminal_driver import PASTE_END, PASTE_START, InputDecoder


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
