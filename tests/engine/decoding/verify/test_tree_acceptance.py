"""Acceptance with several tokens for a position: χ² of what comes out against the target, tables, provenance."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from specchat.engine.decoding.proposal import Support
from specchat.engine.decoding.tree import BRANCHES, Tree, chain, tree_of
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.decoding.verify.chain_acceptance import accept
from specchat.engine.decoding.verify.tree_acceptance import TreeVerdict, accept_tree, accept_tree_greedy
from specchat.engine.kernels.library import missing
from specchat.engine.kernels.sampling import DrawRequest, SampledRow, draw, judge
from specchat.engine.request import Sampling
from specchat.engine.sampling.sampler import draw as draw_token
from specchat.engine.sampling.sampler import one_hot, standardise
from specchat.engine.sampling.sampling_rows import SamplingRows
from specchat.engine.sampling.without_replacement import draw_different
from tests.engine.chi_square import z_score

CPU = torch.device("cpu")
FIVE_SIGMA = 5.0
BY_KERNELS = pytest.param(True, marks=pytest.mark.skipif(missing() is not None, reason=missing() or ""))


def judged(
    tree: Tree, p: Tensor, q: Tensor, support: Support, rows: int, seed: int = 0, *, certain: bool = False
) -> tuple[TreeVerdict, Tensor]:
    """Draft and judge the same tree many times, behind token 0; p [V, V] and q [V, V'] are of what follows each.

    With `certain` the likeliest of q are offered, not drawn ones.
    """
    random = torch.Generator().manual_seed(seed)
    tokens = torch.zeros(rows, len(tree) + 1, dtype=torch.long)
    drawn_from = torch.zeros(rows, tree.inner, q.shape[1])
    for token, children in enumerate(tree.children):
        if children:
            drawn_from[:, token] = q[tokens[:, token]]
            u = torch.rand(rows, 1, len(children), generator=random, dtype=torch.float64)
            places = draw_different(drawn_from[:, token : token + 1], u)[:, 0]
            if certain:
                places = drawn_from[:, token].topk(len(children)).indices
            tokens[:, list(children)] = support.tokens[places]
    row = torch.arange(rows)
    tree_mask = TreeMask.of((tree,), len(tree) + 1, CPU)
    many = TreeMask(
        tree_mask.depths.expand(rows, -1),
        tree_mask.inside.expand(rows, -1, -1),
        tree_mask.children.expand(rows, -1, -1),
        tree_mask.widths,
        tree_mask.trees * rows,
    )
    verdict = accept_tree(
        lambda end: p[tokens[row, end]],
        tokens[:, 1:],
        many,
        torch.zeros(rows, dtype=torch.bool),
        torch.rand(rows, tree.depth, BRANCHES, generator=random, dtype=torch.float64),
        torch.rand(rows, generator=random, dtype=torch.float64),
        None if certain else drawn_from,
        None if certain else support,
    )
    return verdict, tokens


def emitted(verdict: TreeVerdict, tokens: Tensor) -> Tensor:
    """The tokens of each round [B, D+1]: those kept, then the last, then -1."""
    kept = torch.where(verdict.path > 0, tokens.gather(1, verdict.path), -1)
    whole = torch.cat([kept, torch.full_like(kept[:, :1], -1)], 1)
    return whole.scatter(1, (verdict.path > 0).sum(-1, keepdim=True), verdict.last[:, None])


def emitted_by_kernels(
    tree: Tree, logits: tuple[Tensor, Tensor], support: Support, sampling: Sampling, rows: int, *, certain: bool = False
) -> Tensor:
    """`judged` and `emitted` by the kernels, from logits [V, V] and [V, V'] of what follows each token."""
    u_draft, u, u_last = (
        np.random.default_rng(i).random((rows, n)) for i, n in enumerate((len(tree), 4 * tree.depth, 1))
    )
    made: list[SampledRow] = []
    known = support.tokens.tolist()
    for row in range(rows):
        tokens, q = [0] * (len(tree) + 1), torch.zeros(tree.inner, len(known))
        for node, children in enumerate(tree.children):
            if children:
                mine = u_draft[row, [child - 1 for child in children]].tolist()
                wanted = DrawRequest(logits[1][tokens[node]], sampling, mine, q[node])
                drawn = draw([wanted], 1)[0]
                places = logits[1][tokens[node]].topk(len(children)).indices.tolist() if certain else drawn
                for child, place in zip(children, places, strict=False):
                    tokens[child] = known[place]
        uniforms = u[row].reshape(-1, 4)
        seen = logits[0][tokens]
        drawn_from = None if certain else q
        made.append(SampledRow(seen, sampling, tokens[1:], tree.parents, drawn_from, False, uniforms, u_last[row, 0]))
    drafted = None if certain else (support.tokens, support.places)
    verdicts = judge(made, logits[0].shape[1], drafted, 1)
    kept = [[*(row.drafted[n - 1] for n in each.path), each.last] for row, each in zip(made, verdicts, strict=True)]
    return torch.tensor([each + [-1] * (tree.depth + 1 - len(each)) for each in kept])


def distributions(
    vocabulary: int, drafted: int, adversarial: bool, sampling: Sampling
) -> tuple[Tensor, Tensor, Support]:
    """p [V, V] and q [V, V'] of a random target and a draft over part of its vocabulary."""
    logits, theirs, support = random_logits(vocabulary, drafted, adversarial)
    rows = SamplingRows.of([sampling], CPU)
    return standardise(logits[None], rows)[0], standardise(theirs[None], rows)[0], support


def random_logits(vocabulary: int, drafted: int, adversarial: bool) -> tuple[Tensor, Tensor, Support]:
    """What `distributions` are made of."""
    logits = torch.randn(vocabulary, vocabulary, generator=torch.Generator().manual_seed(1)) * 2
    support = Support.of(torch.randperm(vocabulary, generator=torch.Generator().manual_seed(2))[:drafted], vocabulary)
    theirs = -logits if adversarial else logits + torch.randn(logits.shape, generator=torch.Generator().manual_seed(3))
    return logits, theirs[:, support.tokens].contiguous(), support


@pytest.mark.parametrize("sampling", [Sampling(temperature=1.0), Sampling(temperature=0.8, top_k=6, top_p=0.9)])
@pytest.mark.parametrize("drafted", [pytest.param(16, marks=pytest.mark.slow), 9])
@pytest.mark.parametrize("adversarial", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("certain", [False, True], ids=["drawn", "certain"])
@pytest.mark.parametrize("by_kernels", [False, BY_KERNELS], ids=["tensors", "kernels"])
def test_what_comes_out_is_distributed_as_the_target(
    by_kernels: bool, certain: bool, adversarial: bool, drafted: int, sampling: Sampling
) -> None:
    p, q, support = distributions(16, drafted, adversarial, sampling)
    if by_kernels:
        logits = random_logits(16, drafted, adversarial)[:2]
        tokens = emitted_by_kernels(tree_of(3), logits, support, sampling, 5_000, certain=certain)
    else:
        rounds = (judged(tree_of(3), p, q, support, 50_000, seed, certain=certain) for seed in range(4))
        tokens = torch.cat([emitted(*each) for each in rounds])
    assert z_score(tokens[:, 0], p[0]) < FIVE_SIGMA
    for first in range(16):
        second = tokens[(tokens[:, 0] == first) & (tokens[:, 1] >= 0), 1]
        if len(second) > 500:
            assert z_score(second, p[first]) < FIVE_SIGMA


@pytest.mark.slow
def test_a_large_vocabulary() -> None:
    p, q, support = distributions(4096, 700, False, Sampling(temperature=1.0))
    tokens = torch.cat([emitted(*judged(tree_of(1), p, q, support, 2_500, seed)) for seed in range(40)])
    assert z_score(tokens[:, 0], p[0]) < FIVE_SIGMA


def test_beta_is_the_share_that_is_kept() -> None:
    p, q, support = distributions(16, 9, False, Sampling(temperature=1.0))
    verdict, _ = judged(tree_of(2), p, q, support, 100_000)
    kept = (verdict.path[:, 0] > 0).double().mean().item()
    assert verdict.beta[:, 0].double().mean().item() == pytest.approx(kept, abs=0.005)
    one = torch.minimum(p[0, support.tokens], q[0]).sum().item()
    assert kept > one + 0.01, "several tokens are kept more often than one"


def test_a_chain_is_judged_as_a_chain() -> None:
    p, q, support = distributions(16, 16, False, Sampling(temperature=1.0))
    verdict, tokens = judged(chain(3), p, q, support, 500)
    random = torch.Generator().manual_seed(0)
    for _ in range(3):
        torch.rand(500, 1, 1, generator=random, dtype=torch.float64)
    u = torch.rand(500, 3, BRANCHES, generator=random, dtype=torch.float64)[:, :, 0]
    u_last = torch.rand(500, generator=random, dtype=torch.float64)
    whole = torch.zeros(16, 16)
    whole[:, support.tokens] = q
    alone = accept(p[tokens], tokens[:, 1:], torch.full((500,), 3), u, u_last, whole[tokens[:, :-1]])
    assert torch.equal((verdict.path > 0).sum(-1), alone.accepted)
    assert (verdict.last == alone.last).double().mean() > 0.99, "but for rounding"


def test_the_draft_being_the_target_is_kept_at_once() -> None:
    p, _, support = distributions(16, 16, False, Sampling(temperature=1.0))
    verdict, _ = judged(tree_of(4), p, p[:, support.tokens], support, 2_000)
    assert (verdict.path[:, 0] == 1).all(), "the first choice"


def test_a_token_that_could_not_be_drawn_is_never_kept() -> None:
    """Where the drafter knew two tokens for four places, the rest are nothing; p may like them all the same."""
    p = torch.full((8, 8), 1 / 8)
    q = torch.zeros(8, 8)
    q[:, 0] = q[:, 1] = 0.5
    verdict, tokens = judged(tree_of(1), p, q, Support.of(torch.arange(8), 8), 100_000)
    assert set(tokens[verdict.path[:, 0] > 0].gather(1, verdict.path[verdict.path[:, 0] > 0]).flatten().tolist()) == {
        0,
        1,
    }
    assert z_score(emitted(verdict, tokens)[:, 0], p[0]) < FIVE_SIGMA


def test_greedy_goes_along_the_tokens_that_are_the_targets() -> None:
    tree = Tree((0, 1, 0, 2, 3, 1))  # 1-2-4, 3-5, and 6 beside 2
    drafted = torch.tensor([[5, 6, 9, 7, 1, 3]])
    wanted = torch.tensor([5, 3, 0, 0, 0, 0, 40])
    tree_mask = TreeMask.of([tree], 7, CPU)
    by_match = accept_tree_greedy(wanted[None], drafted, tree_mask)
    p = one_hot(wanted, 50)
    by_chance = accept_tree(
        lambda end: p[end],
        drafted,
        tree_mask,
        torch.tensor([True]),
        torch.full((1, 3, BRANCHES), 0.999, dtype=torch.float64),
        torch.tensor([0.5], dtype=torch.float64),
        torch.zeros(1, tree.inner, 50),
        Support.of(torch.arange(50), 50),
    )
    for verdict in (by_match, by_chance):
        assert verdict.path.tolist() == [[1, 6, 0]]
        assert verdict.end.item() == 6
        assert verdict.last.item() == 40
        assert verdict.p[0, 0, :2].tolist() == [1, 0]
        assert verdict.p[0, 1, :2].tolist() == [0, 1]
        assert verdict.beta[0, :2].tolist() == [1, 1]


def test_every_token_comes_from_where_it_says() -> None:
    """A kept token was drafted behind what was kept before it; a last token is likely under what p has become."""
    p, q, support = distributions(16, 9, True, Sampling(temperature=0.7))
    tree = tree_of(4)
    verdict, _ = judged(tree, p, q, support, 5_000)
    assert verdict.left is not None
    for row in range(300):
        path = [token for token in verdict.path[row].tolist() if token]
        assert path == tree.path(int(verdict.end[row]))
        assert verdict.left[row, verdict.last[row]] > 0


@pytest.mark.parametrize("merged", [False, True], ids=["without replacement", "merged"])
def test_tokens_drawn_from_what_is_not_a_number_are_refused_and_leave_the_target_as_it_is(merged: bool) -> None:
    tree, random = Tree((0, 0)), torch.Generator().manual_seed(9)
    p = torch.rand(3, 9, generator=random).softmax(-1)
    q = torch.rand(3, 2 if merged else 1, 9, generator=random).softmax(-1)
    q[0] = torch.nan
    tokens, u_last = torch.tensor([[4, 5]]).expand(3, -1), torch.rand(3, generator=random, dtype=torch.float64)
    never = torch.full((3, 1, BRANCHES), 1 - 2.0**-53, dtype=torch.float64)
    sources = torch.tensor([0, 1, 0, 0]).expand(3, 3, -1) if merged else None
    verdict = accept_tree(
        lambda end: p,  # noqa: ARG005
        tokens,
        TreeMask.of((tree,) * 3, 3, CPU),
        torch.zeros(3, dtype=torch.bool),
        never,
        u_last,
        q,
        None if merged else Support.of(torch.arange(9), 9),
        sources,
    )
    assert not verdict.end[0]
    assert verdict.last[0] == draw_token(p, u_last)[0]
    assert (verdict.beta[0].item(), verdict.q[0].abs().sum().item()) == (0.0, 0.0)
    assert (verdict.beta[1:] > 0).all()
