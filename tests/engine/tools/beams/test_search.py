"""The rules of the search, on log-probabilities that are made up."""

from __future__ import annotations

from math import exp

import pytest
import torch

from specchat.engine.errors import EngineError
from specchat.engine.events import FinishReason
from specchat.engine.tools.beams.node import Node
from specchat.engine.tools.beams.search import BeamSearch

END = 0


def search(width: int, limit: int = 10) -> BeamSearch:
    return BeamSearch(Node(9, None, 3), width, {END}, limit, FinishReason.LENGTH)


def step(on: BeamSearch, *chances: list[float]) -> list[tuple[list[int], float]]:
    """Advance by probabilities [beams, V]; the beams that go on then."""
    on.advance(torch.tensor(chances).log())
    return [([node.token for node in beam.node.path()[1:]], round(exp(beam.score), 4)) for beam in on.beams]


def test_the_likeliest_texts_of_all_beams_go_on() -> None:
    found = search(2)
    assert step(found, [0.0, 0.6, 0.3, 0.1]) == [([1], 0.6), ([2], 0.3)]
    assert step(found, [0.0, 0.4, 0.3, 0.3], [0.0, 0.05, 0.05, 0.9]) == [([2, 3], 0.27), ([1, 1], 0.24)]


def test_equally_likely_texts_come_in_the_order_of_their_beams_and_tokens() -> None:
    found = search(3)
    assert [text for text, _ in step(found, [0.0, 0.25, 0.25, 0.25, 0.25])] == [[1], [2], [3]]
    even = [0.0, 0.25, 0.25, 0.25, 0.25]
    assert [text for text, _ in step(found, even, even, even)] == [[1, 1], [1, 2], [1, 3]]


def test_an_end_is_complete_only_among_the_first_and_makes_room_for_others() -> None:
    found = search(2)
    assert step(found, [0.3, 0.4, 0.2, 0.1]) == [([1], 0.4), ([2], 0.2)]
    assert [each.node.token for each in found.complete] == [END]
    assert found.complete[0].score == pytest.approx(torch.tensor(0.3).log().item())
    step(found, [0.1, 0.5, 0.4, 0.0], [0.1, 0.0, 0.9, 0.0])
    assert len(found.complete) == 1, "0.04 and 0.02 are not among the two likeliest"


def test_it_is_over_when_what_goes_on_is_no_better_than_what_is_complete() -> None:
    found = search(2)
    step(found, [0.0, 0.5, 0.5])
    assert not found.done
    step(found, [0.9, 0.05, 0.05], [0.9, 0.05, 0.05])
    assert found.done
    assert [(each.node.parent and each.node.parent.token, each.reason) for each in found.complete] == [
        (1, FinishReason.EOS),
        (2, FinishReason.EOS),
    ]


def test_a_longer_text_may_still_win() -> None:
    found = search(2)
    step(found, [0.2, 0.8, 0.0])
    step(found, [0.01, 0.99, 0.0])
    assert [each.node.position - 3 for each in found.complete] == [1, 2]
    assert not found.done, "log 0.79 over two tokens is above both"
    step(found, [0.9, 0.1, 0.0])
    assert [each.node.position - 3 for each in found.complete] == [3, 1]


def test_texts_are_complete_at_the_limit() -> None:
    found = search(2, limit=1)
    assert step(found, [0.1, 0.5, 0.4]) == []
    assert found.done
    assert found.left == 0
    assert [(each.node.token, each.reason) for each in found.complete] == [
        (1, FinishReason.LENGTH),
        (2, FinishReason.LENGTH),
    ]


def test_what_is_not_a_number_is_said() -> None:
    with pytest.raises(EngineError, match="the target computed something that is not a number"):
        search(2).advance(torch.full((1, 4), torch.nan))
