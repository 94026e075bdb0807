"""Wrapping of tokens and characters: every character shown once, whole, in lines no wider than requested."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.segment import Segment
from textual.document._document import Document
from textual.document._wrapped_document import WrappedDocument
from textual.strip import Strip

from specchat.app.ui.rendering.token_lines import TokenLines
from specchat.engine import Fate
from tests.terminal import Terminal


def texts(lines: TokenLines) -> list[str]:
    return ["".join(piece.text for piece in line) for line in lines.lines]


def wrapped(*tokens: str, width: int = 10, fate: Fate = Fate.ACCEPTED) -> list[str]:
    lines = TokenLines(width)
    lines.append([(token, fate) for token in tokens], 0)
    return texts(lines)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["The", " quick", " brown", " fox"], ["The quick ", "brown fox"]),
        (["one", "\n", "two"], ["one", "two"]),
        (["one", "\n\n", "two"], ["one", "", "two"]),
        (["antidis", "establish", "ment"], ["antidisest", "ablishment"]),
        (["ab ", "antidis", "establishment"], ["ab ", "antidisest", "ablishment"]),
        (["a\tb"], ["a   b"]),
        (["東京は日本の首都です"], ["東京は日本", "の首都です"]),
        (["ab東京", "は日本の"], ["ab東京は日", "本の"]),
        (["🙂🙂🙂🙂🙂🙂"], ["🙂🙂🙂🙂🙂", "🙂"]),
        (["exactly te", " more"], ["exactly te", "more"]),
        (["e\u0301" * 12], ["e\u0301" * 10, "e\u0301" * 2]),
        ([""], [""]),
        (["\r\x1b[31m"], ["␍␛[31m"]),
    ],
)
def test_wraps(tokens: list[str], expected: list[str]) -> None:
    assert wrapped(*tokens) == expected


@pytest.mark.parametrize(
    ("token", "shown"), [("\n", "↵"), ("\n\n", "↵↵"), ("\n    x", "↵x"), ("   ", "␣"), (" the", " the"), ("", "")]
)
@pytest.mark.parametrize("fate", [Fate.REJECTED, Fate.DISCARDED])
def test_what_was_not_said_does_not_break_the_line(token: str, shown: str, fate: Fate) -> None:
    assert wrapped("a", token, fate=fate)[0] == "a" + shown


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("<|im_end|>", "⊣"), ("<|im_start|>", "⊢"), ("</s>", "⊣"), ("<|fim_middle|>", "◇"), ("a<|im_end|>\n", "a⊣↵"),
        ("<b>", "<b>"),
    ],
)  # fmt: skip
def test_special_tokens_of_drafts_are_short_signs(token: str, shown: str) -> None:
    assert wrapped(token, fate=Fate.REJECTED) == [shown]
    assert wrapped(token, fate=Fate.ACCEPTED, width=20) == [token.rstrip("\n"), *[""] * token.count("\n")]


@given(
    st.lists(st.text(st.sampled_from("ab c\n\t東🙂\u0301\u200d\ufe0f\x1b\u202e"), max_size=12), max_size=20),
    st.integers(min_value=2, max_value=12),
)
def test_any_text_fits(tokens: list[str], width: int) -> None:
    lines = TokenLines(width)
    for number, token in enumerate(tokens):
        before = [list(line) for line in lines.lines[:-1]]
        lines.append([(token, Fate.PLAIN)], number)
        assert lines.lines[: len(before)] == before
    for line in lines.lines:
        # A joiner at the end of one piece joins nothing in the next, so pieces are measured one by one.
        assert sum(cell_len(piece.text) for piece in line) <= width
    letters = "".join(c for token in tokens for c in token if c in "ab東🙂")
    assert "".join(c for text in texts(lines) for c in text if c in "ab東🙂") == letters


FLAGS, SYLLABLES, TONE, HEART, FAMILY = "🇩🇪🇫🇷", "क्षि हिन्दी", "👍🏽", "❤️", "👨\u200d👩\u200d👧"
PROGRAM = (sys.executable, "-m", "tests.stress.numbered", "--rounds", 3)
PLAIN, REJECTED = Fate.PLAIN, Fate.REJECTED


@pytest.mark.slow
def test_the_right_border_of_the_composer_stays_whatever_is_typed(tmp_path: Path) -> None:
    """This terminal counts flags, tones, hearts and vowel signs in another way than the app."""
    lines = [f"{text * 4} end{n}" for n, text in enumerate((FLAGS, SYLLABLES, TONE, HEART, FAMILY, "한글", "e\u0301"))]
    with Terminal(*PROGRAM, SPECCHAT_HOME=str(tmp_path)) as terminal:
        terminal.wait_for("ready: ask anything")
        terminal.type("\x1b[200~" + "\n".join(lines) + "\x1b[201~", "end6")
        terminal.wait_quiet()
        rows = terminal.text.splitlines()
        right = next(row.index("╮") for row in rows if "╭" in row)
        for n in range(len(lines)):
            (place,) = [y for y, row in enumerate(rows) if f"end{n}" in row]
            assert terminal.cells[place][right].data == "│"


def test_a_character_that_grows_at_the_end_of_a_line_begins_the_next() -> None:
    lines = TokenLines(4)
    lines.append([("abcक", PLAIN), ("ा", PLAIN), ("d", PLAIN)], 0)
    assert [[piece.text for piece in line] for line in lines.lines] == [["abc"], ["का", "d"]]
    assert [lines.plain(y, 0, 9)[0] for y in (0, 1)] == ["abc", "काd"]


def test_a_cut_leaves_no_part_of_a_character() -> None:
    strip = Strip([Segment("xक्षिy")])
    assert [strip.crop(0, end).text for end in range(6)] == ["", "x", "x ", "x  ", "xक्षि", "xक्षिy"]


def test_a_line_of_a_text_area_does_not_begin_within_a_character() -> None:
    text = "हिन्दीका" * 4
    starts = WrappedDocument(Document(text), 10).get_offsets(0)
    parts = [text[first:last] for first, last in zip([0, *starts], [*starts, len(text)], strict=True)]
    assert len(parts) > 2
    assert all("न्दी" in part or "न्" not in part for part in parts)
    assert not any(part[0] in "िीा\u094dद" for part in parts)
