"""The suffix drafter against a search of the whole text, with and without the kernels, and the kernels' drafts."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specchat.engine.backends.kernel_drafting import KernelDrafting, PenaltiesOfRows
from specchat.engine.decoding.draft import Draft, RowOrder
from specchat.engine.decoding.tree_growth import fixed_budget
from specchat.engine.drafters import suffix
from specchat.engine.drafters.suffix import RepeatedText, SuffixDrafter, TextDrafter
from tests.engine.rows import row_of

pytestmark = pytest.mark.usefixtures("kernels")
texts = st.lists(st.integers(0, 3), max_size=60)
WORDS = 16


@pytest.fixture(autouse=True, scope="module", params=["kernels", "numpy"])
def search(request: pytest.FixtureRequest) -> Iterator[None]:
    """What searches the text."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "numpy":
            patch.setattr(suffix, "missing", lambda: "no compiler")
        yield


def text_of(tokens: Sequence[int]) -> RepeatedText:
    made = RepeatedText()
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
    assert text_of(text).matched == min(longest_match(text), 32)


@given(texts, texts)
def test_each_token_follows_the_longest_match_most_often(text: list[int], behind: list[int]) -> None:
    drafted = text_of(text).predict(behind)
    whole = [*text, *behind]
    length = min(longest_match(whole), 32) if text else 0
    for token, bucket in (next(drafted) for _ in range(4 if length else 0)):
        seen = followers(whole, whole[len(whole) - length :])
        assert seen[token] == max(seen.values())
        assert (bucket > 0) == (2 * seen[token] > seen.total())
        whole, length = [*whole, token], length + 1
    assert length or not list(drafted)


@given(texts, st.integers(0, 60))
def test_tokens_one_by_one_or_together_make_no_difference(text: list[int], cut: int) -> None:
    made = text_of(text[:cut])
    made.extend(text[cut:])
    assert [each for each, _ in zip(made.predict(), range(8), strict=False)] == [
        each for each, _ in zip(text_of(text).predict(), range(8), strict=False)
    ]


def test_the_most_frequent_continuation_wins_and_the_latest_breaks_ties() -> None:
    for text, token in (((1, 5, 1, 5, 1, 6, 1), 5), ((1, 5, 1, 6, 1), 6)):
        assert next(text_of(text).predict())[0] == token


@given(st.lists(st.integers(0, 4), min_size=2, max_size=80), st.sets(st.integers(0, 4)), st.sets(st.integers(0, 4)))
def test_the_kernels_draft_the_same(text: list[int], ends: set[int], never: set[int]) -> None:
    never -= ends
    by_kernels = draft(text, 8, SuffixDrafter(ends, never, vocabulary=WORDS))
    assert by_kernels == draft(text, 8, SuffixDrafter(ends, never))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param([1, 2, 3, 1, 2, 4] * 300, id="more matches than are counted"),
        pytest.param([5, 6, 1, 9, *[1, 2] * 1200, 5, 6, 1], id="a match too long ago"),
    ],
)
def test_the_kernels_draft_the_same_from_a_text_that_repeats_very_often(text: list[int]) -> None:
    assert draft(text, 8, SuffixDrafter(vocabulary=WORDS)) == draft(text, 8)


def test_nothing_is_drafted_behind_an_end_and_turn_marks_never() -> None:
    drafter = SuffixDrafter(ends={3}, never={4})
    assert draft([1, 2, 3, 5, 6, 4, 7, 1], 8, drafter)[0] == [2, 3]
    assert draft([1, 2, 3, 5, 6, 4, 7, 5], 8, drafter)[0] == [6]


def draft(text: list[int], count: int, drafter: TextDrafter[Any] | None = None) -> tuple[list[int], list[int]]:
    """Tokens and buckets that a drafter gives for a text."""
    drafter, row = drafter or SuffixDrafter(), row_of(text)
    row.room = count
    drafter.admit(row)
    order = RowOrder(row, count, fixed_budget(count))
    made = made_by_kernels(drafter, order) if drafter.recipe else drafter.propose([order])[0]
    drafter.release(row)
    return [*made.tokens], [*made.buckets]


def made_by_kernels(drafter: TextDrafter[Any], order: RowOrder) -> Draft:
    """The draft that the kernels make by the recipe of a drafter."""
    assert drafter.recipe
    return KernelDrafting(drafter.recipe, PenaltiesOfRows(WORDS), 1).grow([order])[0]
