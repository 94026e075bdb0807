"""Wrapping: every character shown once, lines no wider than asked, and nothing wrapped twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from specchat.app.ui.rendering.token_lines import TokenLines
from specchat.engine import Fate


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
