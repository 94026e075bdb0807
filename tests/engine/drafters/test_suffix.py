"""The suffix automaton against a search of the whole text, and what the drafter makes of it."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specchat.engine.drafters.suffix import SuffixAutomaton, SuffixDrafter
from specchat.engine.drafters.text_drafter import TextDrafter
from specchat.engine.outbox import Outbox
from specchat.engine.request import Request
from specchat.engine.sequence.sequence import SequenceState

texts = st.lists(st.integers(0, 3), max_size=60)


def automaton(tokens: Sequence[int]) -> SuffixAutomaton:
    made = SuffixAutomaton()
    made.extend(tokens)
    return made


def followers(text: Sequence[int], suffix: Sequence[int]) -> Counter[int]:
    """What followed each earlier occurrence of a suffix."""
    size = len(suffix)
    return Counter(text[i + size] for i in range(len(text) - size) if list(text[i : i + size]) == list(suffix))


def longest_match(text: Sequence[int]) -> int:
    """Tokens of the longest suffix that occurred before."""
    return next(n for n in range(len(text), -1, -1) if n == 0 or followers(text, text[len(text) - n :]))


@given(texts)
def test_the_match_is_the_longest_suffix_that_occurred_before(text: list[int]) -> None:
    state, length = automaton(text).matched
    assert length == longest_match(text)
    assert (state == 0) == (length == 0)


@given(texts)
def test_the_likeliest_token_has_followed_the_match(text: list[int]) -> None:
    made = automaton(text)
    state, length = made.matched
    if length:
        seen = followers(text, text[len(text) - length :])
        found = made.likeliest(state)
        assert found[0] in seen
        assert (found[1] == 1) == (len(seen) == 1)


@given(texts)
def test_a_step_leads_to_the_longest_match_with_the_token(text: list[int]) -> None:
    made = automaton(text)
    state, length = made.matched
    for token in range(4):
        found = made.step(state, length, token)[1]
        longest = max((n + 1 for n in range(1, length + 1) if token in followers(text, text[-n:])), default=0)
        assert found == max(longest, int(token in text))


@given(texts, st.integers(0, 60))
def test_tokens_one_by_one_or_together_make_no_difference(text: list[int], cut: int) -> None:
    made = automaton(text[:cut])
    made.extend(text[cut:])
    whole = automaton(text)
    assert made.matched == whole.matched
    assert made.likeliest(made.matched[0]) == whole.likeliest(whole.matched[0])


def test_the_most_frequent_continuation_wins_and_the_latest_breaks_ties() -> None:
    for text, token in (((1, 5, 1, 5, 1, 6, 1), 5), ((1, 5, 1, 6, 1), 6)):
        made = automaton(text)
        found = made.likeliest(made.matched[0])
        assert found[0] == token


@pytest.mark.parametrize(
    ("text", "count", "tokens"),
    [
        pytest.param([3, 9, 3, 9, 3, 9, 1, 2, 3, 4, 7, 1, 2, 3], 1, [4], id="a long match over a more frequent one"),
        pytest.param([8, 1, 2, 3, 4, 9, 1, 2, 3, 5, 8, 1, 2, 3], 1, [4], id="a match beyond three tokens"),
        pytest.param([1, 2, 3, 1, 2, 3], 8, [1, 2, 3, 1, 2, 3, 1, 2], id="beyond the end of what repeats"),
        pytest.param([1, 2, 3], 4, [], id="nothing that is new"),
    ],
)
def test_the_longest_match_goes_on(text: list[int], count: int, tokens: list[int]) -> None:
    assert draft(text, count)[0] == tokens


def test_nothing_is_drafted_behind_an_end_and_turn_marks_never() -> None:
    drafter = SuffixDrafter(ends={3}, never={4})
    assert draft([1, 2, 3, 5, 6, 4, 7, 1], 8, drafter)[0] == [2, 3]
    assert draft([1, 2, 3, 5, 6, 4, 7, 5], 8, drafter)[0] == [6]


def draft(text: list[int], count: int, drafter: TextDrafter[Any] | None = None) -> tuple[list[int], list[int]]:
    """Tokens and buckets that a drafter gives for a text."""
    drafter = drafter or SuffixDrafter()
    request = Request("r", prompt_ids=tuple(text))
    row = SequenceState(request, Outbox(), 0, list(text), len(text), 0, 0, None, "suffix")  # type: ignore[arg-type]
    drafter.admit(row)
    made = drafter.propose([row], [count])
    drafter.release(row)
    return made.tokens[0], made.buckets[0]
