"""Drafters of the text's own n-grams, by the source's own trace and rules."""

from collections.abc import Sequence

import pytest

from specchat.engine.research.ngram import MAX_HISTORY, CopyDrafter, NGramDrafter
from tests.engine.drafters.test_suffix import draft


@pytest.mark.parametrize(
    ("text", "count", "tokens"),
    [
        pytest.param([1, 2, 3], 4, [], id="nothing seen"),
        pytest.param([1, 2, 3, 4, 5, 6, 1], 4, [2, 3, 4, 5], id="chained through predicted tokens"),
        pytest.param([1, 2, 3, 4, 5, 6, 1], 2, [2, 3], id="as many as are asked for"),
        # After 3: mostly 9. After (1, 2, 3): 4.
        pytest.param([3, 9, 3, 9, 3, 9, 1, 2, 3, 4, 7, 1, 2, 3], 1, [4], id="the longest context wins"),
        pytest.param([1, 2, 3, 4, 8, 9, 2, 3], 1, [4], id="back to order 3"),
        pytest.param([1, 2, 3, 4, 8, 9, 9, 3], 1, [4], id="back to order 2"),
        pytest.param([1, 5, 1, 5, 1, 6, 1], 1, [5], id="the most frequent wins"),
        pytest.param([1, 5, 1, 6, 1], 1, [6], id="the latest breaks ties"),
        pytest.param([1, 2, 3, *[9] * (MAX_HISTORY + 10), 1, 2], 1, [3], id="counts outlive the window"),
    ],
)
def test_ngrams_go_on_as_they_did_most_often(text: list[int], count: int, tokens: list[int]) -> None:
    assert draft(text, count, NGramDrafter())[0] == tokens


def test_each_token_comes_with_the_order_of_its_ngram() -> None:
    assert draft([1, 2, 3, 4, 5, 1], 4, NGramDrafter()) == ([2, 3, 4, 5], [2, 3, 4, 4])


@pytest.mark.parametrize(
    ("text", "count", "expected"),
    [
        ([1, 2, 3, 4, 1, 2, 5, 6, 1, 2], 3, ([5, 6, 1], [2, 2, 2])),  # the later of both places
        ([1, 2, 3, 4, 1, 2, 5, 6, 1, 2, 3], 2, ([4, 1], [3, 3])),
        ([1, 2, 3, 7], 4, ([], [])),
        ([1, 5, 8, 5], 4, ([], [])),  # a mark of the template
        ([1, 5, 9, 5], 4, ([9], [1])),  # nothing after the end
    ],
)
def test_a_copy_goes_on_as_before(text: list[int], count: int, expected: tuple[Sequence[int], Sequence[int]]) -> None:
    assert draft(text, count, CopyDrafter(ends={9}, never={8})) == expected
