"""Acceptance: exact tables, invariance to batching, and χ² of what comes out against the target's distribution."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.acceptance import accept, accept_greedy
from engine.draws import Stream, uniforms
from engine.request import Sampling
from engine.sampling import SamplingRows, draw, one_hot, standardise
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


FILTERS = {
    "plain": Sampling(temperature=1.0),
    "cool": Sampling(temperature=0.6),
    "top-k": Sampling(temperature=1.0, top_k=6),
    "top-p": Sampling(temperature=1.0, top_p=0.7),
}


@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS.keys())
@pytest.mark.parametrize("certain_draft", [False, True], ids=["adversarial draft", "certain draft"])
def test_every_position_is_distributed_as_the_target_at_a_small_vocabulary(
    filters: Sampling, certain_draft: bool
) -> None:
    """V = 16, draft logits = -target, 200,000 trials: the test that catches draws shared between draft and residual."""
    torch.manual_seed(5)
    logits = torch.randn(1, 3, 16) * 1.5
    rows = SamplingRows.of([filters], torch.device("cpu"))
    p = standardise(logits, rows)[0]
    q = None if certain_draft else standardise(-logits, rows)[0, :2]
    tokens = sample(p, q, 200_000, 50_000)
    for position in range(3):
        seen = tokens[:, position]
        seen = seen[seen >= 0]
        if seen.numel() > 1000:
            assert abs(z_score(seen, p[position])) < 4


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_every_position_is_distributed_as_the_target_at_a_large_vocabulary(temperature: float) -> None:
    """V = 4,096, 10 x V trials, a draft that is near the target but not it."""
    torch.manual_seed(6)
    logits = torch.randn(1, 3, 4096) * 2
    rows = SamplingRows.of([Sampling(temperature=temperature)], torch.device("cpu"))
    p = standardise(logits, rows)[0]
    q = standardise(logits + torch.randn_like(logits) * 0.5, rows)[0, :2]
    tokens = sample(p, q, 40_960, 1_024)
    assert (tokens[:, 1] >= 0).float().mean() > 0.5, "the draft should be good enough to test later positions"
    for position in range(3):
        seen = tokens[:, position]
        assert abs(z_score(seen[seen >= 0], p[position])) < 4


def test_chunked_and_whole_batches_agree() -> None:
    torch.manual_seed(7)
    p, q = torch.rand(3, 16).softmax(-1), torch.rand(2, 16).softmax(-1)
    assert torch.equal(sample(p, q, 3_000, 3_000), sample(p, q, 3_000, 7))
