"""Token recycling: what a table offers, what it learns, and that drafts of certain trees leave the distribution."""

from __future__ import annotations

import pytest
import torch

from specchat.engine import Request, Round, Sampling
from specchat.engine.runner.tree import Tree, tree_of
from specchat.engine.speculation.drafters.recycling import SuccessorTable
from tests.engine.chi_square import z_score
from tests.engine.tiny import ask, ids_of, run_together, tiny_engine, tiny_model


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
        sampling = [Sampling(temperature=1.0, seed=seed) for seed in range(2500)]
        requests = [
            Request(f"r{i}", prompt_ids=prompt, drafter="recycling", gamma=2, max_tokens=6, sampling=each)
            for i, each in enumerate(sampling)
        ]
        events = run_together(engine, requests)
    assert any(isinstance(event, Round) and event.offered for each in events for event in each)
    replies = [ids_of(each) for each in events]
    text: list[int] = []
    for _ in range(5):
        behind = torch.tensor(
            [each[len(text)] for each in replies if each[: len(text)] == text and len(each) > len(text)]
        )
        if len(behind) < 150:
            break
        with torch.inference_mode():
            p = plain.model(torch.tensor([[*prompt, *text]])).logits[0, -1].softmax(-1)
        assert abs(z_score(behind, p)) < 4
        text.append(int(behind.bincount().argmax()))
    assert len(text) > 2
