"""Acceptance: exact tables, invariance to batching, and χ² of what comes out against the target's distribution."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specchat.engine.decoding.tree import chain
from specchat.engine.decoding.verify.chain_acceptance import Verdict, accept, accept_greedy, near_best
from specchat.engine.kernels.library import missing
from specchat.engine.kernels.sampling import SampledRow, judge
from specchat.engine.request import Sampling
from specchat.engine.sampling.rng import Stream, uniforms
from specchat.engine.sampling.sampler import draw, most_likely, one_hot, standardise
from specchat.engine.sampling.sampling_rows import SamplingRows
from tests.engine.chi_square import z_score

V = 8


def certain(tokens: list[list[int]]) -> Tensor:
    return one_hot(torch.tensor(tokens), V)


# what the target wants, what was drafted, accepted, last
TABLE = {
    "perfect": ([1, 2, 3, 4], [1, 2, 3], 3, 4),
    "first wrong": ([1, 2, 3, 4], [7, 2, 3], 0, 1),
    "middle wrong": ([1, 2, 3, 4], [1, 7, 3], 1, 2),
    "last wrong": ([1, 2, 3, 4], [1, 2, 7], 2, 3),
    "empty draft": ([5, 0, 0, 0], [], 0, 5),
    "short draft, all right": ([1, 2, 3, 4], [1], 1, 2),
}


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE.keys())
def test_greedy_accept_table(row: tuple[list[int], list[int], int, int]) -> None:
    wanted, drafted, accepted, last = row
    tokens = torch.tensor([drafted + [0] * (3 - len(drafted))])
    length = torch.tensor([len(drafted)])
    by_match = accept_greedy(torch.tensor([wanted]), tokens, length)
    by_chance = accept(certain([wanted]), tokens, length, torch.rand(1, 3).double(), torch.rand(1).double())
    for verdict in (by_match, by_chance):
        assert verdict.accepted.tolist() == [accepted]
        assert verdict.last.tolist() == [last]
        assert verdict.p[0, : len(drafted)].tolist() == [float(a == b) for a, b in zip(wanted, drafted, strict=False)]


def test_ragged_rows_are_judged_as_they_are_alone() -> None:
    torch.manual_seed(1)
    p = torch.rand(5, 4, V).softmax(-1)
    q = torch.rand(5, 3, V).softmax(-1)
    drafted, u, u_last = torch.randint(V, (5, 3)), torch.rand(5, 3).double(), torch.rand(5).double()
    lengths = torch.tensor([3, 0, 1, 2, 3])
    together = accept(p, drafted, lengths, u, u_last, q)
    for i, n in enumerate(lengths.tolist()):
        one = slice(i, i + 1)
        alone = accept(p[one, : n + 1], drafted[one, :n], lengths[one], u[one, :n], u_last[one], q[one, :n])
        assert alone.accepted.item() == together.accepted[i].item()
        assert alone.last.item() == together.last[i].item()


def test_beta_is_the_overlap_of_p_and_q() -> None:
    torch.manual_seed(2)
    p, q = torch.rand(2, 3, V).softmax(-1), torch.rand(2, 2, V).softmax(-1)
    drafted = torch.randint(V, (2, 2))
    args = drafted, torch.tensor([2, 2]), torch.rand(2, 2).double(), torch.rand(2).double()
    torch.testing.assert_close(accept(p, *args, q).beta, torch.minimum(p[:, :2], q).sum(-1))
    # A certain draft is the one-hot q, judged without building it.
    dense, sparse = accept(p, *args, one_hot(drafted, V)), accept(p, *args)
    for name in ("accepted", "last", "p", "q", "beta"):
        torch.testing.assert_close(getattr(dense, name), getattr(sparse, name))


def test_the_draft_being_the_target_is_always_accepted() -> None:
    torch.manual_seed(3)
    p = torch.rand(200, 5, V).softmax(-1)
    drafted = torch.randint(V, (200, 4))
    verdict = accept(
        p, drafted, torch.full((200,), 4), torch.rand(200, 4).double(), torch.rand(200).double(), p[:, :4].clone()
    )
    assert verdict.accepted.tolist() == [4] * 200


def test_a_token_the_target_cannot_say_is_never_accepted() -> None:
    p = certain([[3, 3]])
    verdict = accept(p, torch.tensor([[2]]), torch.tensor([1]), torch.zeros(1, 1).double(), torch.zeros(1).double())
    assert (verdict.accepted.item(), verdict.last.item()) == (0, 3)


def sample(p: Tensor, q: Tensor | None, trials: int, chunk: int) -> Tensor:
    """Tokens [trials, γ+1] by speculative sampling from one context-free p [γ+1, V] and q [γ, V]; -1 where none."""
    gamma = p.shape[0] - 1
    out = []
    for start in range(0, trials, chunk):
        n = min(chunk, trials - start)
        seeds, rounds = range(start, start + n), [0] * n
        u_draft = torch.from_numpy(uniforms(seeds, rounds, Stream.DRAFT, gamma))
        u = torch.from_numpy(uniforms(seeds, rounds, Stream.ACCEPT, gamma))
        u_last = torch.from_numpy(uniforms(seeds, rounds, Stream.LAST, 1)[:, 0])
        if q is None:
            drafted = p[:gamma].topk(2).indices[:, 1].expand(n, gamma).clone()
            dense = None
        else:
            drafted = torch.stack([draw(q[i].expand(n, -1), u_draft[:, i]) for i in range(gamma)], 1)
            dense = q.expand(n, -1, -1)
        verdict = accept(p.expand(n, -1, -1), drafted, torch.full((n,), gamma), u, u_last, dense)
        tokens = torch.full((n, gamma + 1), -1)
        kept = torch.arange(gamma) < verdict.accepted[:, None]
        tokens[:, :gamma] = torch.where(kept, drafted, -1)
        tokens[torch.arange(n), verdict.accepted] = verdict.last
        out.append(tokens)
    return torch.cat(out)


def sample_by_kernels(logits: Tensor, settings: Sampling, q: Tensor | None, trials: int) -> Tensor:
    """`sample` from logits [γ+1, V], by the kernels."""
    gamma = logits.shape[0] - 1
    seeds, rounds = range(trials), [0] * trials
    u_draft, u, u_last = (
        uniforms(seeds, rounds, stream, gamma) for stream in (Stream.DRAFT, Stream.ACCEPT, Stream.LAST)
    )
    if q is None:
        drafted = logits[:gamma].topk(2).indices[:, 1].expand(trials, gamma)
    else:
        parts = torch.from_numpy(u_draft).split(1024)
        drawn = [[draw(each.expand(len(u), -1), u[:, i]) for u in parts] for i, each in enumerate(q)]
        drafted = torch.stack([torch.cat(each) for each in drawn], 1)
    parents = chain(gamma).parents
    rows = [
        SampledRow(logits, settings, tokens, parents, q, True, u[i, :, None], u_last[i, 0])
        for i, tokens in enumerate(drafted.tolist())
    ]
    verdicts = judge(rows, logits.shape[1], None, 1)
    kept = [[*tokens[: len(each.path)], each.last] for tokens, each in zip(drafted.tolist(), verdicts, strict=True)]
    return torch.tensor([each + [-1] * (gamma + 1 - len(each)) for each in kept])


FILTERS = {
    "plain": Sampling(temperature=1.0),
    "cool": Sampling(temperature=0.6),
    "top-k": Sampling(temperature=1.0, top_k=6),
    "top-p": Sampling(temperature=1.0, top_p=0.7),
}


_HAS_KERNELS = pytest.mark.skipif(missing() is not None, reason=missing() or "")
BY_KERNELS = pytest.param(True, marks=_HAS_KERNELS)
BY_KERNELS_SLOWLY = pytest.param(True, marks=[_HAS_KERNELS, pytest.mark.slow])


@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS.keys())
@pytest.mark.parametrize("certain_draft", [False, True], ids=["adversarial draft", "certain draft"])
@pytest.mark.parametrize("by_kernels", [False, BY_KERNELS], ids=["tensors", "kernels"])
def test_every_position_is_distributed_as_the_target_at_a_small_vocabulary(
    filters: Sampling, certain_draft: bool, by_kernels: bool
) -> None:
    """V = 16, draft logits = -target, 200,000 trials: the test that catches draws shared between draft and residual."""
    torch.manual_seed(5)
    logits = torch.randn(1, 3, 16) * 1.5
    rows = SamplingRows.of([filters], torch.device("cpu"))
    p = standardise(logits, rows)[0]
    q = None if certain_draft else standardise(-logits, rows)[0, :2]
    tokens = sample_by_kernels(logits[0], filters, q, 20_000) if by_kernels else sample(p, q, 200_000, 50_000)
    for position in range(3):
        seen = tokens[:, position]
        seen = seen[seen >= 0]
        if seen.numel() > 1000:
            assert abs(z_score(seen, p[position])) < 4


@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize("by_kernels", [False, BY_KERNELS_SLOWLY], ids=["tensors", "kernels"])
def test_every_position_is_distributed_as_the_target_at_a_large_vocabulary(
    temperature: float, by_kernels: bool
) -> None:
    """V = 4,096, 10 x V trials, a draft that is near the target but not it."""
    torch.manual_seed(6)
    logits = torch.randn(1, 3, 4096) * 2
    settings = Sampling(temperature=temperature)
    rows = SamplingRows.of([settings], torch.device("cpu"))
    p = standardise(logits, rows)[0]
    q = standardise(logits + torch.randn_like(logits) * 0.5, rows)[0, :2]
    tokens = sample_by_kernels(logits[0], settings, q, 40_960) if by_kernels else sample(p, q, 40_960, 1_024)
    assert (tokens[:, 1] >= 0).float().mean() > 0.5, "the draft should be good enough to test later positions"
    for position in range(3):
        seen = tokens[:, position]
        assert abs(z_score(seen[seen >= 0], p[position])) < 4


def test_chunked_and_whole_batches_agree() -> None:
    torch.manual_seed(7)
    p, q = torch.rand(3, 16).softmax(-1), torch.rand(2, 16).softmax(-1)
    assert torch.equal(sample(p, q, 3_000, 3_000), sample(p, q, 3_000, 7))


# ---- lenience


POINTS = 10_000


def outcome(p: Tensor, q: Tensor, lenience: float) -> Tensor:
    """The distribution [V] of one position's token, by the measure of the draws with which `accept` gives each.

    Each token is drafted with its q. As u decides on acceptance alone and u_last on the last token alone, a grid over
    each is enough: the middles of `POINTS` intervals.
    """
    size = p.numel()
    grid = (torch.arange(POINTS, dtype=torch.float64) + 0.5) / POINTS
    refused = torch.ones(POINTS, dtype=torch.float64) - 2.0**-53
    out = torch.zeros(size, dtype=torch.float64)

    def judge(token: int, u: Tensor) -> Verdict:
        drafted, length = torch.full((POINTS, 1), token), torch.ones(POINTS, dtype=torch.long)
        rows = torch.full((POINTS,), lenience, dtype=torch.float64)
        return accept(p.expand(POINTS, 2, -1), drafted, length, u[:, None], grid, q.expand(POINTS, 1, -1), rows)

    for token in range(size):
        kept = judge(token, grid).accepted.double().mean()
        out[token] += q[token].double() * kept
        if kept < 1:
            verdict = judge(token, refused)
            assert not verdict.accepted.any()
            out += q[token].double() * (1 - kept) * torch.bincount(verdict.last, minlength=size) / POINTS
    return out


# p, q and what must come out at l = 1/2, in sixteenths; thresholds p / (l q) and residuals fall between grid points
BY_HAND = {
    # 0 is over-drafted (kept with 4 / (8 / 2) = 1), nothing is refused: q comes out
    "all within p / l": ([4, 4, 4, 4], [8, 4, 2, 2], [8, 4, 2, 2]),
    # 0 is kept with 2 / (8 / 2) = 1/2; the refused 4/16 go to 1 and 2, which lack 2 and 4, in that ratio
    "beyond p / l": ([2, 6, 8, 0], [8, 4, 4, 0], [4, 4 + 4 / 3, 4 + 8 / 3, 0]),
    # a token that the target cannot say stays unsaid
    "impossible": ([0, 8, 8, 0], [4, 4, 8, 0], [0, 8, 8, 0]),
}


@pytest.mark.parametrize("case", BY_HAND.values(), ids=BY_HAND.keys())
def test_lenient_sampling_by_hand(case: tuple[list[float], list[float], list[float]]) -> None:
    p, q, wanted = (torch.tensor(numbers) / 16 for numbers in case)
    torch.testing.assert_close(outcome(p, q, 0.5), wanted.double(), rtol=0, atol=2 / POINTS)


@pytest.mark.parametrize("lenience", [1.0, 0.7, 0.3, 0.05])
def test_no_token_comes_out_more_likely_than_p_over_l(lenience: float) -> None:
    """The guarantee of Appendix A.5, and that no other residual comes nearer to p."""
    torch.manual_seed(8)
    for sharpness in (0.5, 1.5, 3.0):
        p, q = ((torch.randn(5) * sharpness).softmax(-1) for _ in range(2))
        got = outcome(p, q, lenience)
        assert (got <= p.double() / lenience + 2 / POINTS).all()
        torch.testing.assert_close(got.sum(), torch.ones((), dtype=torch.float64))
        # Exactly: what is accepted, and the refused rest in proportion to what p has over q.
        accepted = torch.minimum(p.double() / lenience, q.double())
        over = (p.double() - q.double()).clamp(min=0)
        exact = accepted + (1 - accepted.sum()) * over / over.sum()
        torch.testing.assert_close(got, exact, rtol=0, atol=2 / POINTS)
        assert (exact <= p.double() / lenience * (1 + 1e-6)).all()
        # Distance from p: no more than acceptance alone puts beyond p.
        excess = (accepted - p.double()).clamp(min=0).sum()
        torch.testing.assert_close((exact - p.double()).clamp(min=0).sum(), excess, rtol=0, atol=1e-6)
        if lenience == 1:
            torch.testing.assert_close(exact, p.double(), rtol=0, atol=1e-6)


def test_beta_is_the_lenient_acceptance_rate() -> None:
    """Appendix A.5: α = Σ min(p / l, q)."""
    torch.manual_seed(9)
    p, q = torch.rand(3, 3, V).softmax(-1), (torch.rand(3, 2, V) * 3).softmax(-1)
    drafted = torch.randint(V, (3, 2))
    lenience = torch.tensor([0.5, 1.0, 0.9], dtype=torch.float64)
    args = drafted, torch.full((3,), 2), torch.rand(3, 2).double(), torch.rand(3).double()
    beta = accept(p, *args, q, lenience).beta
    for b in range(3):
        torch.testing.assert_close(beta[b], torch.minimum(p[b, :2] / lenience[b].float(), q[b]).sum(-1))
    dense, sparse = accept(p, *args, one_hot(drafted, V), lenience), accept(p, *args, None, lenience)
    for name in ("accepted", "last", "p", "q", "beta"):
        torch.testing.assert_close(getattr(dense, name), getattr(sparse, name))


def test_rows_without_lenience_are_judged_as_if_there_were_none() -> None:
    torch.manual_seed(10)
    p, q = (torch.randn(50, 4, V) * 2).softmax(-1), (torch.randn(50, 3, V) * 2).softmax(-1)
    args = torch.randint(V, (50, 3)), torch.full((50,), 3), torch.rand(50, 3).double(), torch.rand(50).double()
    lenience = torch.where(torch.arange(50) % 2 == 0, 1.0, 0.3).double()
    strict, mixed = accept(p, *args, q), accept(p, *args, q, lenience)
    for name in ("accepted", "last", "p", "q", "beta"):
        assert torch.equal(getattr(strict, name)[::2], getattr(mixed, name)[::2])
    assert mixed.accepted[1::2].sum() > strict.accepted[1::2].sum()
    settings = [Sampling(temperature=1.0, lenience=1.0), Sampling()]
    assert SamplingRows.of(settings, torch.device("cpu")).lenience is None


@pytest.mark.parametrize("other", [None, Sampling(temperature=0.9)], ids=["all greedy", "beside a sampling row"])
def test_lenient_greedy_accepts_what_is_nearly_the_best(other: Sampling | None) -> None:
    """p(x) ≥ l max(p), p at temperature 1; a refused token is corrected to the best one."""
    p = torch.tensor([0.5, 0.25, 0.24, 0.01])
    logits = (p.log() + 3).expand(2, 3, -1)
    #      drafted, l       accepted, last
    table = [
        ([0, 1], 0.5, 2, 0),
        ([1, 2], 0.49, 1, 0),
        ([1, 2], 0.48, 2, 0),
        ([2, 0], 0.5, 0, 0),
        ([3, 0], 0.02, 2, 0),
        ([3, 0], 0.021, 0, 0),
        ([0, 1], 1.0, 1, 0),
    ]
    for tokens, lenience, accepted, last in table:
        # Just inside where the ratio is meant to be met: float32 logits hold it to seven digits.
        settings = [Sampling(lenience=lenience * (1 - 1e-6) if lenience < 1 else 1.0)] + ([other] if other else [])
        rows = SamplingRows.of(settings, torch.device("cpu"))
        batch = logits[: len(settings)]
        drafted, lengths = torch.tensor([tokens] * len(settings)), torch.full((len(settings),), 2)
        near = near_best(batch, drafted, rows)
        if other:
            u = torch.full((2, 2), 0.999, dtype=torch.float64), torch.tensor([0.3, 0.3], dtype=torch.float64)
            verdict = accept(standardise(batch, rows), drafted, lengths, *u, None, rows.lenience, near)
        else:
            verdict = accept_greedy(most_likely(batch), drafted, lengths, near)
        assert (verdict.accepted[0].item(), verdict.last[0].item()) == (accepted, last), (tokens, lenience)
        assert verdict.p[0].tolist() == [float(token == 0) for token in tokens]
        assert verdict.beta[0, :accepted].tolist() == [1.0] * accepted


def test_strict_greedy_refuses_a_token_that_ties_with_the_best() -> None:
    logits = torch.tensor([[[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]]]).expand(2, -1, -1)
    rows = SamplingRows.of([Sampling(), Sampling(lenience=0.999)], torch.device("cpu"))
    near = near_best(logits, torch.tensor([[1], [1]]), rows)
    assert near is not None
    verdict = accept_greedy(most_likely(logits), torch.tensor([[1], [1]]), torch.tensor([1, 1]), near)
    assert verdict.accepted.tolist() == [0, 1]
    assert near_best(logits, torch.tensor([[1], [1]]), SamplingRows.of([Sampling()] * 2, torch.device("cpu"))) is None


def test_a_broken_row_spoils_no_other_verdict() -> None:
    torch.manual_seed(11)
    p, q = torch.rand(3, 4, 100).softmax(-1), torch.rand(3, 3, 100).softmax(-1)
    args = torch.randint(100, (3, 3)), torch.full((3,), 3), torch.rand(3, 3).double(), torch.rand(3).double()
    whole = accept(p, *args, q)
    p[1] = torch.nan
    broken = accept(p, *args, q)
    for name in ("accepted", "last", "p", "q", "beta"):
        assert torch.equal(getattr(broken, name)[::2], getattr(whole, name)[::2])
    assert 0 <= broken.last[1] < 100


def test_equal_distributions_leave_nothing_to_refuse() -> None:
    """u next to 1, and p = q at every float: u q < p must hold, or the residual would be empty."""
    p = torch.tensor([[[0.5, 0.25, 0.125, 0.125]] * 2, [[1 / 3, 1 / 3, 1 / 3, 1e-38]] * 2, [[1e-45, 1.0, 0, 0]] * 2])
    for token in range(2):
        u = torch.full((3, 1), 1 - 2.0**-53, dtype=torch.float64)
        verdict = accept(
            p, torch.full((3, 1), token), torch.ones(3, dtype=torch.long), u, torch.zeros(3).double(), p[:, :1].clone()
        )
        assert verdict.accepted.tolist() == [1, 1, 1]


def test_a_residual_of_nothing_is_the_target_itself() -> None:
    """q above p everywhere, which only rounding can bring about."""
    p = torch.tensor([[[0.2, 0.3, 0.4999999]] * 2])
    q = torch.tensor([[[0.2000001, 0.3, 0.5]]])
    verdict = accept(
        p,
        torch.tensor([[0]]),
        torch.tensor([1]),
        torch.tensor([[1 - 2.0**-53]]).double(),
        torch.tensor([0.4]).double(),
        q,
    )
    assert (verdict.accepted.item(), verdict.last.item()) == (0, 1)


def test_a_draft_drawn_from_what_is_not_a_number_is_refused_and_leaves_the_target_as_it_is() -> None:
    torch.manual_seed(3)
    p, q = torch.rand(4, 3, 50).softmax(-1), torch.rand(4, 2, 50).softmax(-1)
    drafted, lengths = torch.randint(50, (4, 2)), torch.full((4,), 2)
    u, u_last = torch.rand(4, 2).double(), torch.rand(4).double()
    whole = accept(p, drafted, lengths, u, u_last, q)
    q[1], q[2], q[3, :, 7] = torch.nan, 0.0, torch.nan  # the last one in a part that no token was drawn from
    drafted[3] = 7
    verdict = accept(p, drafted, lengths, u, u_last, q, torch.full((4,), 0.9).double())
    assert verdict.accepted[1:].tolist() == [0, 0, 0]
    plain = accept(p[:, :1], drafted[:, :0], torch.zeros(4, dtype=torch.long), u[:, :0], u_last)
    assert verdict.last[1:3].tolist() == plain.last[1:3].tolist()
    assert verdict.q[1:].tolist() == verdict.beta[1:].tolist() == [[0.0, 0.0]] * 3
    again = accept(p, drafted, lengths, u, u_last, q)
    assert all(torch.equal(getattr(again, name)[:1], getattr(whole, name)[:1]) for name in ("accepted", "last", "beta"))
