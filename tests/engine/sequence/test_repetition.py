"""Replies that repeat themselves, against a comparison of the whole text."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specchat.engine import FinishReason, Request
from specchat.engine.sequence.sequence import LEAST, LONGEST_PERIOD, TIMES, Repetition
from tests.engine.tiny import ids_of, tiny_engine, tiny_model


def repeats(text: Sequence[int]) -> bool:
    """Whether a text ends with a period that is there several times in a row, and long enough."""
    for period in range(1, LONGEST_PERIOD + 1):
        end = text[-max(TIMES * period, LEAST) :]
        if len(end) >= max(TIMES * period, LEAST) and end[period:] == end[:-period]:
            return True
    return False


@given(st.lists(st.integers(0, 2), max_size=40), st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_a_period_is_found_at_its_last_token(beginning: list[int], period: list[int]) -> None:
    text, watch = [*beginning, *period * (LEAST + 1)], Repetition()
    found = [watch.add(token) for token in text]
    assert found == [repeats(text[: end + 1]) for end in range(len(text))]
    assert any(found)


@pytest.mark.parametrize("row", ["| --- " * 8, "0." + "0" * 20, "[" + "0, " * 16 + "0]", "ha " * 12])
def test_what_is_written_on_purpose_is_none(row: str) -> None:
    watch = Repetition()
    assert not any(watch.add(ord(letter)) for letter in row)


@pytest.mark.parametrize(("length", "found"), [(LONGEST_PERIOD, True), (LONGEST_PERIOD + 1, False)])
def test_long_periods(length: int, found: bool) -> None:
    watch = Repetition()
    seen = [watch.add(token) for token in [*range(length)] * (TIMES + 1)]
    assert any(seen) == found
    if found:
        assert seen.index(True) == TIMES * length - 1


def test_a_reply_ends_when_it_repeats_itself_whatever_is_drafted() -> None:
    """A tiny model of random weights soon does."""
    replies = {}
    with tiny_engine(tiny_model(sharpness=20.0)) as engine:
        for drafter in ("none", "suffix"):
            for stop in (True, False):
                request = Request("r", prompt_ids=(9,) * 4, max_tokens=200, drafter=drafter, stop_repeats=stop)
                events = list(engine.stream(request))
                last = events[-1]
                replies[drafter, stop] = ids_of(events), last.reason
    ended, reason = replies["none", True]
    assert reason is FinishReason.REPEATS
    assert repeats(ended)
    assert not repeats(ended[:-1])
    assert replies["suffix", True] == (ended, reason)
    assert replies["none", False] == replies["suffix", False]
    assert replies["none", False][1] is FinishReason.LENGTH
    assert len(replies["none", False][0]) == 200
