"""Nothing that steers a terminal passes."""

import unicodedata

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specchat.app.sanitize import clean_prompt, escape_controls

anything = st.text(st.characters())  # half characters included


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "␛[31mred␛[0m"), ("\x1b]0;title\x07", "␛]0;title␇"), ("\x9b31m", "\ufffd31m"),
        ("a\rb", "a␍b"), ("a\x00b\x08\x7f", "a␀b␈␡"), ("a\u202egnp.exe", "a\ufffdgnp.exe"),
        ("\u2066x\u2069", "\ufffdx\ufffd"), ("a\u2028b\u2029c", "a␤b␤c"), ("\ud83d", "\ufffd"),
        ("👩\u200d🚀 co\u00adop", "👩‧🚀 co‧op"), ("pay\u200bpal\ufeff\u2060", "pay\ufffdpal\ufffd\ufffd"),
        ("hidden\U000e0041\U000e0042", "hidden\ufffd\ufffd"), ("a\u200fb\u061cc", "a\ufffdb\ufffdc"),
    ],
)  # fmt: skip
def test_what_a_terminal_acts_on_becomes_a_sign(raw: str, shown: str) -> None:
    assert escape_controls(raw) == shown


@pytest.mark.parametrize(
    "text", ["", "plain", "two\nlines\tand a tab", "naïve 日本語 🎈", "שלום مرحبا", "e\u0301 ❤\ufe0f 👍🏽"]
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert escape_controls(text) == text
    assert clean_prompt(text) == text


@given(anything)
def test_visible_text_has_no_control_characters_and_keeps_its_length(text: str) -> None:
    shown = escape_controls(text)
    assert len(shown) == len(text)
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t"]
    assert not [c for c in shown if unicodedata.bidirectional(c) in ("LRE", "RLE", "LRO", "RLO", "PDF", "BN")]
    assert not [c for c in shown if unicodedata.category(c) == "Cf" and not _is_drawn(c)]
    assert escape_controls(shown) == shown
    shown.encode()


def _is_drawn(sign: str) -> bool:
    """Signs of Arabic, Syriac, Kaithi and Egyptian writing that Unicode counts as formatting, and that have a shape."""
    return unicodedata.bidirectional(sign) in ("AN", "AL", "L")


@given(st.text(st.sampled_from("\x1b[]0;123mHJABC\x07\x9b\x9d\x90\x08\x0e\x0f\x1bc ab"), max_size=40))
def test_a_terminal_only_ever_draws_it(text: str) -> None:
    screen = pyte.Screen(80, 2)
    pyte.Stream(screen).feed(escape_controls(text))
    assert screen.display[0].rstrip() == escape_controls(text).rstrip()
    assert screen.title == ""


@given(anything)
def test_prompts_can_be_encoded_and_have_one_kind_of_line_end(text: str) -> None:
    cleaned = clean_prompt(text)
    cleaned.encode()
    assert not [c for c in cleaned if unicodedata.category(c) == "Cc" and c not in "\n\t"]
    assert clean_prompt(cleaned) == cleaned


def test_prompts_keep_what_was_meant() -> None:
    assert clean_prompt("one\r\ntwo\rthree\n") == "one\ntwo\nthree\n"
    assert clean_prompt("nul\x00, esc\x1b[1m, c1\x85 and del\x7f") == "nul, esc[1m, c1 and del"
    assert clean_prompt(b"half \xe2\x82".decode(errors="surrogateescape")) == "half \ufffd\ufffd"
