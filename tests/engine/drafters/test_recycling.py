"""Token recycling: what a table offers, what it learns, and that drafts of certain trees leave the distribution."""

from __future__ import annotations

import pytest

from specchat.engine import Round
from specchat.engine.decoding.tree import Tree, tree_of
from specchat.engine.drafters.recycling import SuccessorTable
from tests.engine.sampled import check_distribution, sampled, says
from tests.engine.tiny import ask, tiny_engine, tiny_model


def test_a_tree_is_filled_as_far_as_successors_are_known() -> None:
    table = SuccessorTable()
    table.extend([1, 2, 3])
    assert table.fill(1, Tree((0, 0, 1, 3)), ()) == ([2, 3], [1, 3], Tree((0, 1)))
    table.learn([1, 2], [[4, 2, 7, 8], [1, 9, 7, 8]])
    assert table.fill(1, Tree((0, 0, 1, 2)), ()) == ([4, 2, 1], [1, 2, 4], Tree((0, 0, 2)))
    assert table.fill(1, Tree((0, 0, 1, 2)), ends={2}) == ([4, 2], [1, 2], Tree((0, 0)))
    table.extend([5])
    assert table.fill(3, Tree((0, 0)), ()) == ([5], [1], Tree((0,)))
    assert table.fill(6, tree_of(4), ()) == ([], [], Tree(()))


def test_what_the_target_has_said_is_offered_next_time() -> None:
    """A greedy text that comes to a cycle: once every token has been read behind the one before, all is accepted."""
    with tiny_engine(tiny_model()) as engine:
        request = ask("hello", drafter="recycling", gamma=3, max_tokens=120)
        rounds = [event for event in engine.stream(request) if isinstance(event, Round)]
    assert any(record.offered > record.gamma for record in rounds)
    assert sum(record.accepted for record in rounds) > len(rounds)


@pytest.mark.slow
def test_sampled_output_has_the_targets_distribution() -> None:
    """After the first rounds there are trees; the third token is behind what some of them offered."""
    target, plain = (tiny_model(sharpness=25.0) for _ in range(2))
    prompt = (104, 105, 33, 104, 105, 33, 104, 105)
    with tiny_engine(target, slots=16, queue=3000) as engine:
        events = sampled(engine, "recycling", prompt, 2500, max_tokens=6)
    assert any(isinstance(event, Round) and event.offered for each in events for event in each)
    assert check_distribution(events, prompt, says(plain), places=5) > 2
