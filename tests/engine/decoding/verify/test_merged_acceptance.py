"""Acceptance of merged drafts: χ² of what comes out, by positions, and that the test sees what would be wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from specchat.engine.decoding.tree import BRANCHES
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.decoding.trials import Trials, trial_mask
from specchat.engine.decoding.verify.tree_acceptance import accept_tree
from specchat.engine.research.merged import PrefixTree
from tests.engine.chi_square import z_score

V, ROWS = 6, 8000
Change = Callable[[Trials], Trials]


def texts(drafts: int, change: Change = lambda trials: trials, *, alike: bool = False) -> tuple[Tensor, Tensor]:
    """The two first tokens of many rounds [n, 2], and p [V, V] behind each token; every row begins behind token 0.

    Args:
        drafts: how many draft two positions each.
        change: what is done to the trials.
        alike: whether all draw by the same uniforms.
    """
    made = torch.Generator().manual_seed(drafts)
    p = (torch.randn(V, V, generator=made) * 1.5).softmax(-1)
    # All like a token that the target does not, and something else each.
    liked = 1.5 * torch.nn.functional.one_hot(p.argmin(-1), V)
    q = (torch.randn(drafts, V, V, generator=made) + liked).softmax(-1)
    uniforms = torch.rand(ROWS, drafts, 2, generator=made)
    if alike:
        uniforms[:] = uniforms[:, :1].clone()
    chains, sources = torch.zeros(ROWS, drafts, 2, dtype=torch.long), torch.zeros(ROWS, drafts * 2, V)
    for number in range(drafts):
        before = torch.zeros(ROWS, dtype=torch.long)
        for place in range(2):
            weights = q[number, before]
            sources[:, 2 * number + place] = weights
            u = uniforms[:, number, place, None].contiguous()
            before = chains[:, number, place] = (weights.cumsum(-1) < u).sum(-1).clamp(max=V - 1)
    shuffled, first = random.Random(1), [2 * number for number in range(drafts)]
    merged = [PrefixTree.of(each) for each in chains.tolist()]
    order = [[shuffled.sample(range(drafts), drafts) for _ in range(2)] for _ in merged]
    trials = [change(each.trials(orders, first)) for each, orders in zip(merged, order, strict=True)]
    width = 2 * drafts + 1
    tokens = torch.tensor([[0, *each.tokens] + [0] * (width - 1 - len(each.tokens)) for each in merged])
    mask, of_trials = trial_mask(TreeMask.of([each.tree for each in merged], width, torch.device("cpu")), trials)
    row = torch.arange(ROWS)
    verdict = accept_tree(
        lambda end: p[tokens[row, end]],
        tokens[:, 1:],
        mask,
        torch.zeros(ROWS, dtype=torch.bool),
        torch.rand(ROWS, 2, BRANCHES, generator=made, dtype=torch.float64),
        torch.rand(ROWS, generator=made, dtype=torch.float64),
        sources,
        None,
        of_trials,
    )
    accepted = (verdict.path > 0).sum(-1)
    kept = tokens.gather(1, verdict.path)
    second = torch.where(accepted > 1, kept[:, 1], torch.where(accepted == 1, verdict.last, -1))
    return torch.stack([torch.where(accepted > 0, kept[:, 0], verdict.last), second], 1), p


def worst(drawn: Tensor, p: Tensor) -> float:
    """The largest z-score of the first token, and of the second behind each first one."""
    behind = [drawn[(drawn[:, 0] == token) & (drawn[:, 1] >= 0), 1] for token in range(V)]
    scores = [z_score(part, p[token]) for token, part in enumerate(behind) if len(part) > 150]
    assert scores
    return max(map(abs, [z_score(drawn[:, 0], p[0]), *scores]))


@pytest.mark.parametrize("drafts", [2, *(pytest.param(drafts, marks=pytest.mark.slow) for drafts in (3, 4))])
def test_what_comes_out_has_the_targets_distribution(drafts: int) -> None:
    assert worst(*texts(drafts)) < 4


def once(trials: Trials) -> Trials:
    """A token that several drafts brought is tried but once."""
    pairs = [
        list(dict(zip(children, sources, strict=True)).items())
        for children, sources in zip(trials.children, trials.sources, strict=True)
    ]
    return Trials(*(tuple(tuple(pair[part] for pair in line) for line in pairs) for part in (0, 1)))


def by_token(trials: Trials) -> Trials:
    """In an order that the tokens decide: those of several drafts before those of one."""

    def ordered(children: Sequence[int], sources: Sequence[int]) -> list[tuple[int, int]]:
        return sorted(zip(children, sources, strict=True), key=lambda pair: (-children.count(pair[0]), pair[0]))

    pairs = [ordered(*each) for each in zip(trials.children, trials.sources, strict=True)]
    return Trials(*(tuple(tuple(pair[part] for pair in line) for line in pairs) for part in (0, 1)))


@pytest.mark.slow
def test_it_would_not_without_a_trial_in_an_order_that_tokens_decide_or_by_draws_that_depend_on_each_other() -> None:
    assert worst(*texts(4, once)) > 6
    assert worst(*texts(4, by_token)) > 6
    assert worst(*texts(4, alike=True)) > 6
