"""The acceptance rule: exact tables, χ² of the output against the target, lenience, and numerical edge cases."""

import random

import pytest
import torch
from torch import Tensor

from specchat.engine.decoding.acceptance import Drafted, Verdict, accept, near_best
from specchat.engine.decoding.draft import Support
from specchat.engine.decoding.tree import BRANCHES, Tree, chain
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.research.merged import PrefixTree
from specchat.engine.sampling.rng import token_uniforms
from specchat.engine.sampling.sampler import SamplingRows, draw_different, one_hot, standardise
from specchat.engine.settings import Sampling
from tests.engine.sampled import z_score

CPU = torch.device("cpu")
V = 8
GREEDY, SAMPLED = Sampling(), Sampling(temperature=1.0)
BRANCHING = Tree((0, 0, 1, 1, 3))


def chains(
    p: Tensor,
    tokens: Tensor,
    lengths: list[int],
    u: Tensor,
    u_last: Tensor,
    q: Tensor | None = None,
    sampling: list[Sampling] | None = None,
) -> Verdict:
    """Verdict on chains from p [B, γ+1, V], tokens [B, γ] and uniforms [B, γ] and [B]."""
    count, gamma = tokens.shape
    mask = TreeMask.of([chain(length) for length in lengths], gamma + 1, CPU)
    yes = torch.ones(count, dtype=torch.bool)
    drafted = Drafted(tokens, mask, q, None, None if q is None else yes, yes)
    settings = SamplingRows.of(sampling or [SAMPLED] * count, CPU)
    u_own = u_last.double()[:, None].expand(-1, gamma + 1)
    return accept(p.log(), drafted, settings, u[..., None].double().expand(-1, -1, BRANCHES), u_own)


def accepted(verdict: Verdict) -> list[int]:
    return (verdict.path > 0).sum(-1).tolist()


def random_batch(count: int, gamma: int, size: int = V, seed: int = 1) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """p, tokens, u, u_last and q of random chains."""
    made = torch.Generator().manual_seed(seed)
    p = torch.randn(count, gamma + 1, size, generator=made).softmax(-1)
    q = torch.randn(count, gamma, size, generator=made).softmax(-1)
    tokens = torch.randint(size, (count, gamma), generator=made)
    return p, tokens, torch.rand(count, gamma, generator=made), torch.rand(count, generator=made), q


# what the target wants, what was drafted, accepted, last
TABLE = {
    "perfect": ([1, 2, 3, 4], [1, 2, 3], 3, 4), "first wrong": ([1, 2, 3, 4], [7, 2, 3], 0, 1),
    "middle wrong": ([1, 2, 3, 4], [1, 7, 3], 1, 2), "last wrong": ([1, 2, 3, 4], [1, 2, 7], 2, 3),
    "empty draft": ([5, 0, 0, 0], [], 0, 5), "short draft, all right": ([1, 2, 3, 4], [1], 1, 2),
}  # fmt: skip


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE.keys())
@pytest.mark.parametrize("beside", [None, SAMPLED], ids=["all greedy", "next to a sampled row"])
def test_greedy_rows_follow_the_target(row: tuple[list[int], list[int], int, int], beside: Sampling | None) -> None:
    wanted, drafted, count, last = row
    sampling = [GREEDY, *([beside] if beside else [])]
    rows = len(sampling)
    tokens = torch.tensor([drafted + [0] * (3 - len(drafted))] * rows)
    p = one_hot(torch.tensor([wanted] * rows), V)
    verdict = chains(p, tokens, [len(drafted)] * rows, torch.rand(rows, 3), torch.rand(rows), sampling=sampling)
    assert (accepted(verdict)[0], verdict.last[0].item()) == (count, last)
    tested = min(count + 1, len(drafted))
    assert verdict.p[0, :tested, 0].tolist() == [float(a == b) for a, b in zip(wanted, drafted[:tested], strict=False)]


def test_greedy_trees_follow_the_branch_of_the_target() -> None:
    best = torch.tensor([[5, 1, 6, 2, 3, 4]])
    logits = one_hot(best, V).log()
    mask = TreeMask.of([BRANCHING], 6, CPU)
    verdict = accept(
        logits, Drafted(torch.tensor([[4, 5, 0, 0, 0]]), mask), SamplingRows.of([GREEDY], CPU), logits, logits
    )
    assert (verdict.path[0].tolist(), verdict.last.item()) == ([2, 0, 0], 6)
    assert verdict.beta[0].tolist() == [1.0, 0.0, 0.0]


def test_ragged_rows_are_judged_as_they_are_alone() -> None:
    p, tokens, u, u_last, q = random_batch(5, 3)
    lengths = [3, 0, 1, 2, 3]
    together = chains(p, tokens, lengths, u, u_last, q)
    for i, n in enumerate(lengths):
        one = slice(i, i + 1)
        alone = chains(p[one, : n + 1], tokens[one, :n], [n], u[one, :n], u_last[one], q[one, :n])
        assert (accepted(alone)[0], alone.last.item()) == (accepted(together)[i], together.last[i].item())


def test_beta_of_a_chain_is_the_overlap_of_p_and_q() -> None:
    p, tokens, u, u_last, q = random_batch(2, 2, seed=2)
    args = p, tokens, [2, 2], torch.zeros_like(u), u_last
    torch.testing.assert_close(chains(*args, q).beta[:, 0], torch.minimum(p[:, 0], q[:, 0]).sum(-1))
    # That of a certain draft is its p, as of the one-hot q.
    dense, sparse = chains(*args, one_hot(tokens, V)), chains(*args)
    for name in ("p", "q", "beta"):
        torch.testing.assert_close(getattr(dense, name)[:, 0], getattr(sparse, name)[:, 0])


def test_replies_to_a_seed_do_not_depend_on_certain_drafts() -> None:
    made = torch.Generator().manual_seed(7)
    logits, support = torch.randn(16, 16, generator=made), Support.of(torch.arange(16), 16)
    chain_of, tree_of = (
        emitted(layout, logits, logits, support, SAMPLED, 500) for layout in ("certain chain", "certain tree")
    )
    both = (chain_of >= 0) & (tree_of >= 0)
    assert both.sum() > 1.1 * len(both)
    assert torch.equal(chain_of[both], tree_of[both])


def test_a_token_the_target_cannot_say_is_never_accepted() -> None:
    verdict = chains(one_hot(torch.tensor([[3, 3]]), V), torch.tensor([[2]]), [1], torch.zeros(1, 1), torch.zeros(1))
    assert (accepted(verdict), verdict.last.item()) == ([0], 3)


# ---- χ²: a target and a draft that depend on the token before, drafted and judged many times.
# The kernels give the same outcomes (`tests.engine.backends.test_verdicts`).


def drafts(
    layout: str, theirs: Tensor, support: Support, rows: int, made: torch.Generator
) -> tuple[Tensor, list[Tree], Tensor | None]:
    """Tokens [rows, K], trees and q [rows, I, V'] drafted after token 0 from q [V, V'] after each token."""
    if layout == "listed candidates":
        return merged_drafts(theirs, rows, made)
    tree = chain(3) if "chain" in layout else BRANCHING
    tokens, drawn_from = (
        torch.zeros(rows, len(tree) + 1, dtype=torch.long),
        torch.zeros(rows, tree.inner, theirs.shape[1]),
    )
    for node, children in enumerate(tree.children):
        if children:
            drawn_from[:, node] = theirs[tokens[:, node]]
            u = torch.rand(rows, 1, len(children), generator=made, dtype=torch.float64)
            places = draw_different(drawn_from[:, node : node + 1], u)[:, 0]
            if "certain" in layout:
                places = drawn_from[:, node].topk(len(children)).indices
            tokens[:, list(children)] = support.tokens[places]
    return tokens[:, 1:], [tree] * rows, None if "certain" in layout else drawn_from


def merged_drafts(q: Tensor, rows: int, made: torch.Generator) -> tuple[Tensor, list[Tree], Tensor]:
    """Prefix trees of two independent chains of two tokens, tested in random order."""
    shuffled = random.Random(1)
    drawn, sources = torch.zeros(rows, 2, 2, dtype=torch.long), torch.zeros(rows, 4, q.shape[1])
    for number in range(2):
        before = torch.zeros(rows, dtype=torch.long)
        for place in range(2):
            sources[:, 2 * number + place] = weights = q[before]
            u = torch.rand(rows, 1, generator=made)
            before = drawn[:, number, place] = (weights.cumsum(-1) < u).sum(-1).clamp(max=q.shape[1] - 1)
    merged = [PrefixTree.of(each) for each in drawn.tolist()]
    trees = [each.with_tests([shuffled.sample(range(2), 2) for _ in range(2)], [0, 2]) for each in merged]
    return torch.tensor([each.tokens + [0] * (4 - len(each.tokens)) for each in merged]), trees, sources


def emitted(layout: str, logits: Tensor, theirs: Tensor, support: Support, sampling: Sampling, rows: int) -> Tensor:
    """The tokens of each round [rows, D+1]: the accepted ones, the last one, then -1."""
    made = torch.Generator().manual_seed(5)
    q = standardise(theirs[None], SamplingRows.of([sampling], CPU))[0]
    tokens, trees, drawn_from = drafts(layout, q, support, rows, made)
    depth = max(tree.depth for tree in trees)
    u = torch.rand(rows, depth, BRANCHES, generator=made, dtype=torch.float64)
    u_own = torch.from_numpy(token_uniforms(range(rows), [1] * rows, depth + 1))
    drawn = None if drawn_from is None else torch.ones(rows, dtype=torch.bool)
    mask = TreeMask.of(trees, tokens.shape[1] + 1, CPU)
    batch = Drafted(tokens, mask, drawn_from, support if drawn_from is not None else None, drawn)
    seen = logits[torch.nn.functional.pad(tokens, (1, 0))]
    return tokens_of(tokens, accept(seen, batch, SamplingRows.of([sampling] * rows, CPU), u, u_own))


def tokens_of(drafted: Tensor, verdict: Verdict) -> Tensor:
    """The accepted tokens of each row, the last one, then -1."""
    paths = zip(drafted.tolist(), verdict.path.tolist(), verdict.last.tolist(), strict=True)
    found = [[*(tokens[n - 1] for n in path if n), last] for tokens, path, last in paths]
    return torch.tensor([each + [-1] * (verdict.path.shape[1] + 1 - len(each)) for each in found])


def worst(drawn: Tensor, p: Tensor) -> float:
    """The largest z-score of the first token, and of each next token given the one before."""
    scores = [z_score(drawn[:, 0], p[0])]
    for place in range(drawn.shape[1] - 1):
        for token in range(len(p)):
            part = drawn[(drawn[:, place] == token) & (drawn[:, place + 1] >= 0), place + 1]
            scores += [z_score(part, p[token])] if len(part) > 300 else []
    return max(map(abs, scores))


LAYOUTS = ("drawn chain", "certain chain", "drawn tree", "certain tree", "listed candidates")


@pytest.mark.parametrize("sampling", [SAMPLED, Sampling(temperature=0.8, top_k=6, top_p=0.9)])
@pytest.mark.parametrize("adversarial", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_output_is_distributed_as_the_target(layout: str, adversarial: bool, sampling: Sampling) -> None:
    size, drafted = 16, 16 if layout == "listed candidates" else 9
    made = torch.Generator().manual_seed(1)
    logits = torch.randn(size, size, generator=made)
    support = Support.of(torch.randperm(size, generator=made)[:drafted] if drafted < size else torch.arange(size), size)
    theirs = -logits if adversarial else logits + torch.randn(logits.shape, generator=made)
    drawn = emitted(layout, logits, theirs[:, support.tokens].contiguous(), support, sampling, 20_000)
    p = standardise(logits[None], SamplingRows.of([sampling], CPU))[0]
    assert worst(drawn, p) < 5


# ---- lenience


@pytest.mark.parametrize("lenience", [1.0, 0.7, 0.3, 0.05])
def test_no_token_comes_out_more_likely_than_p_over_l(lenience: float) -> None:
    """The guarantee of Appendix A.5: what is accepted, and the rest in proportion to what p has over q."""
    points = 4000
    for seed in range(3):
        p, _, _, _, q = (part[0] for part in random_batch(1, 1, 5, seed))
        grid = (torch.arange(points) + 0.5) / points
        got = torch.zeros(5, dtype=torch.float64)
        for token in range(5):
            u, tokens = grid[:, None], torch.full((points, 1), token)
            sampling = [Sampling(temperature=1.0, lenience=lenience)] * points
            args = p[:1].expand(points, 2, -1), tokens, [1] * points, u, grid[torch.randperm(points)]
            verdict = chains(*args, q.expand(points, 1, -1), sampling)
            first = torch.where(verdict.end > 0, token, verdict.last)
            got += torch.bincount(first, minlength=5).double() / points * q[0, token].double()
        kept = torch.minimum(p[0].double() / lenience, q[0].double())
        over = (p[0].double() - q[0].double()).clamp(min=0)
        torch.testing.assert_close(got, kept + (1 - kept.sum()) * over / over.sum(), rtol=0, atol=0.02)
        assert (got <= p[0].double() / lenience + 0.02).all()


def test_beta_is_the_lenient_acceptance_rate_and_strict_rows_are_unaffected() -> None:
    p, tokens, u, u_last, q = random_batch(50, 3, seed=10)
    args = p, tokens, [3] * 50, u, u_last, q
    mixed = chains(*args, [Sampling(temperature=1.0, lenience=(1.0, 0.3)[i % 2]) for i in range(50)])
    strict = chains(*args)
    for name in ("path", "last", "p", "q", "beta"):
        assert torch.equal(getattr(strict, name)[::2], getattr(mixed, name)[::2])
    assert sum(accepted(mixed)[1::2]) > sum(accepted(strict)[1::2])
    torch.testing.assert_close(mixed.beta[1, 0], torch.minimum(p[1, 0] / 0.3, q[1, 0]).sum())


@pytest.mark.parametrize("other", [None, Sampling(temperature=0.9)], ids=["all greedy", "next to a sampled row"])
@pytest.mark.parametrize(
    ("tokens", "lenience", "count", "last"),
    [
        ([0, 1], 0.5, 2, 0), ([1, 2], 0.49, 1, 0), ([1, 2], 0.48, 2, 0), ([2, 0], 0.5, 0, 0), ([3, 0], 0.02, 2, 0),
        ([3, 0], 0.021, 0, 0), ([0, 1], 1.0, 1, 0),
    ],
)  # fmt: skip
def test_greedy_lenience(tokens: list[int], lenience: float, count: int, last: int, other: Sampling | None) -> None:
    """p(x) ≥ l max(p), p at temperature 1; a rejected token is corrected to the best one."""
    # Just inside where the ratio is met: float32 logits hold it to seven digits.
    sampling = [Sampling(lenience=lenience * (1 - 1e-6) if lenience < 1 else 1.0), *([other] if other else [])]
    rows = len(sampling)
    p = torch.tensor([0.5, 0.25, 0.24, 0.01]).expand(rows, 3, -1)
    u = torch.full((rows, 2), 0.999)
    verdict = chains(p, torch.tensor([tokens] * rows), [2] * rows, u, torch.full((rows,), 0.3), sampling=sampling)
    assert (accepted(verdict)[0], verdict.last[0].item()) == (count, last)
    assert verdict.beta[0, :count].tolist() == [1.0] * count


def test_strict_greedy_rejects_a_token_that_ties_with_the_best() -> None:
    logits = torch.tensor([[[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]]]).expand(2, -1, -1)
    verdict = chains(
        logits.softmax(-1),
        torch.tensor([[1], [1]]),
        [1, 1],
        torch.rand(2, 1),
        torch.rand(2),
        sampling=[Sampling(), Sampling(lenience=0.999)],
    )
    assert accepted(verdict) == [0, 1]
    assert near_best(logits, torch.tensor([[1], [1]]), SamplingRows.of([Sampling()] * 2, CPU)) is None


# ---- numerical edge cases


def test_a_broken_row_spoils_no_other_verdict() -> None:
    p, tokens, u, u_last, q = random_batch(3, 3, 100, 11)
    whole = chains(p, tokens, [3] * 3, u, u_last, q)
    p[1] = torch.nan
    broken = chains(p, tokens, [3] * 3, u, u_last, q)
    for name in ("path", "last", "p", "q", "beta"):
        assert torch.equal(getattr(broken, name)[::2], getattr(whole, name)[::2])
    assert 0 <= broken.last[1] < 100


def test_equal_distributions_are_accepted_at_the_largest_uniform() -> None:
    p = torch.tensor([[[0.5, 0.25, 0.125, 0.125]] * 2])
    for token in range(4):
        u = torch.full((1, 1), 1 - 2.0**-53, dtype=torch.float64)
        assert accepted(chains(p, torch.tensor([[token]]), [1], u, torch.zeros(1), p[:, :1].clone())) == [1]


def test_a_residual_of_nothing_is_the_target_itself() -> None:
    """q above p everywhere, which only rounding can cause."""
    p, q = torch.tensor([[[0.2, 0.3, 0.4999999]] * 2]), torch.tensor([[[0.2000003, 0.3000002, 0.5000002]]])
    u = torch.tensor([[1 - 2.0**-53]], dtype=torch.float64)
    verdict = chains(p, torch.tensor([[0]]), [1], u, torch.tensor([0.4]), q)
    assert (accepted(verdict), verdict.last.item()) == ([0], 1)


def test_a_draft_from_nan_is_rejected_and_leaves_the_target_unchanged() -> None:
    p, tokens, u, u_last, q = random_batch(4, 2, 50, 3)
    whole = chains(p, tokens, [2] * 4, u, u_last, q)
    q[1], q[2], q[3, :, 7] = torch.nan, 0.0, torch.nan
    tokens[3] = 7
    verdict = chains(p, tokens, [2] * 4, u, u_last, q)
    assert accepted(verdict)[1:] == [0, 0, 0]
    plain = chains(p[:, :1], tokens[:, :0], [0] * 4, u[:, :0], u_last)
    assert verdict.last[1:3].tolist() == plain.last[1:3].tolist()
    assert verdict.q[1:, 0, 0].tolist() == verdict.beta[1:, 0].tolist() == [0.0] * 3
    assert (accepted(verdict)[0], verdict.last[0]) == (accepted(whole)[0], whole.last[0])
