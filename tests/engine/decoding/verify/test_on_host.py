"""Sampled rows judged by the kernels: the outcomes of the verification on tensors, and the same bits everywhere."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specchat.engine.cache.kv_cache import KVCache
from specchat.engine.decoding.proposal import Proposal, Support
from specchat.engine.decoding.tree import Tree, chain, tree_of
from specchat.engine.decoding.verify.chains import VerifiedChains
from specchat.engine.decoding.verify.on_host import judge_sampled
from specchat.engine.decoding.verify.outcome import Outcome, to_host
from specchat.engine.decoding.verify.trees import VerifiedTrees
from specchat.engine.kernels.library import Variant, library, missing
from specchat.engine.kernels.sampling import DrawRequest, draw
from specchat.engine.request import Request, Sampling
from specchat.engine.sampling.sampler import standardise
from specchat.engine.sampling.sampling_rows import SamplingRows
from specchat.engine.sequence.sequence import SequenceState

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")
CPU = torch.device("cpu")
KINDS = (
    Sampling(temperature=1.0),
    Sampling(temperature=0.6, top_k=5),
    Sampling(temperature=1.2, top_p=0.8, min_p=0.02),
    Sampling(temperature=1.0, top_k=300, top_p=0.6),
)


def row_of(number: int, sampling: Sampling) -> SequenceState:
    request = Request("r", prompt_ids=(1,), sampling=sampling)
    return SequenceState(request, None, number, [1, 2], 1, 1, 100 + number, None, "head", rounds=5)  # type: ignore[arg-type]


def drafted(kind: str, tree: Tree | None, count: int, words: int) -> tuple[Proposal, list[Tensor]]:
    """Random logits of `count` rows and drafts of them, by what drafters of this kind give."""
    length = 4 if tree is None else len(tree)
    make = torch.Generator().manual_seed(words + length)
    logits = [2 * torch.randn(length + 1, words, generator=make) for _ in range(count)]
    shape = tree or chain(length)
    support = Support.of(torch.randperm(words, generator=make)[: words // 2], words)
    known = support.tokens if tree else torch.arange(words)
    tokens = torch.zeros(count, length, dtype=torch.long)
    q = torch.zeros(count, length, len(known))
    for b in range(count):
        for node, children in enumerate(shape.children):
            if kind == "certain" and children:
                tokens[b, [child - 1 for child in children]] = logits[b][node].topk(len(children)).indices
            elif children:
                theirs = logits[b][node, known] + torch.randn(len(known), generator=make)
                u = torch.rand(len(children), generator=make, dtype=torch.float64).tolist()
                places = draw([DrawRequest(theirs, Sampling(temperature=1.0), u, q[b, node])], 1)[0]
                tokens[b, [child - 1 for child in children]] = known[places]
    lengths, trees = [length] * count, tree and [tree] * count
    if kind == "certain":
        return Proposal(tokens, lengths, None, trees, certain=frozenset(range(count) if tree else ())), logits
    return Proposal(tokens, lengths, None if tree else q, trees, q if tree else None, support), logits


def by_tensors(rows: list[SequenceState], proposal: Proposal, logits: list[Tensor]) -> list[Outcome]:
    everyone, gammas = range(len(rows)), [3] * len(rows)
    if proposal.trees is None:
        return to_host([VerifiedChains(everyone, rows, torch.stack(logits), proposal, gammas)], len(rows))[0]
    cache = KVCache([(1, 2, 1, 2)], len(rows), 32, CPU, torch.float32)
    return to_host([VerifiedTrees(everyone, rows, torch.stack(logits), proposal, gammas, cache)], len(rows))[0]


@pytest.mark.parametrize("words", [64, 1037])
@pytest.mark.parametrize(
    ("kind", "tree"),
    [
        ("certain", None),
        ("certain", tree_of(3)),
        ("drawn", None),
        ("drawn", tree_of(2)),
        ("drawn", tree_of(4)),
        ("drawn", Tree((0, 0, 2, 2, 0))),
    ],
    ids=str,
)
def test_outcomes_are_those_of_the_tensors(kind: str, tree: Tree | None, words: int) -> None:
    count = 80
    proposal, logits = drafted(kind, tree, count, words)
    rows = [row_of(i, KINDS[i % len(KINDS)]) for i in range(count)]
    ours = judge_sampled(range(count), rows, proposal, logits, [3] * count)
    theirs = by_tensors(rows, proposal, logits)
    for mine, other in zip(ours, theirs, strict=True):
        for name in ("gamma", "drafted", "accepted", "last", "offered", "path", "broken"):
            assert getattr(mine, name) == getattr(other, name), name
        for name in ("p", "q", "u", "beta"):
            assert getattr(mine, name) == pytest.approx(getattr(other, name), rel=1e-4, abs=1e-6), name
        flat = [[number for each in others for number in each] for others in mine.refused]
        assert flat == [pytest.approx([n for each in them for n in each], rel=1e-3, abs=1e-6) for them in other.refused]
    assert len({mine.accepted for mine in ours}) > 2
    alone = [judge_sampled([i], rows, proposal, logits, [3] * count)[0] for i in range(count)]
    assert alone == ours, "to the bit, whatever rides along"


def test_a_round_without_a_draft_draws_from_the_target() -> None:
    rows = [row_of(i, KINDS[i % len(KINDS)]) for i in range(40)]
    logits = [2 * torch.randn(1, 500, generator=torch.Generator().manual_seed(i)) for i in range(40)]
    nothing = Proposal(torch.zeros(40, 0, dtype=torch.long), [0] * 40, None)
    assert judge_sampled(range(40), rows, nothing, logits, [3] * 40) == by_tensors(rows, nothing, logits)


def test_logits_that_are_not_numbers_are_told() -> None:
    nothing = Proposal(torch.zeros(2, 0, dtype=torch.long), [0, 0], None)
    logits = [torch.tensor([[1.0, value, 0.5]]) for value in (torch.nan, torch.inf)]
    rows = [row_of(i, Sampling(temperature=1.0)) for i in range(2)]
    assert all(each.broken for each in judge_sampled([0, 1], rows, nothing, logits, [0, 0]))


@pytest.mark.parametrize("spread", [0.01, 1.0, 4.0], ids=["flat", "wide", "peaked"])
@pytest.mark.parametrize("words", [1, 7, 500, 49_152])
def test_distributions_are_the_standardised_ones_to_the_bit_on_every_instruction_set(words: int, spread: float) -> None:
    logits = spread * torch.randn(words, generator=torch.Generator().manual_seed(words))
    logits[::3] = logits[0]  # ties
    u = [0.0, 0.3, 1 - 2.0**-53, 0.9]
    for sampling in (*KINDS, Sampling(temperature=1e-40), Sampling(temperature=2.0, top_k=700, top_p=0.9)):
        settings = SamplingRows.of([sampling], CPU)
        q, wanted = torch.empty(words), standardise(logits[None, None], settings)[0, 0]
        places = draw([DrawRequest(logits, sampling, u, q)], 1)[0]
        assert ((q > 0) != (wanted > 0)).sum() <= (2 if words > 5000 and sampling.top_p < 1 else 0)
        torch.testing.assert_close(q, wanted, rtol=1e-3 if words > 5000 else 1e-5, atol=1e-7)
        assert len(set(places)) == len(places) == min(len(u), int((q > 0).sum()))
        assert all(q[place] > 0 for place in places)
        for variant in library().variants:
            library().use(variant)
            again = torch.empty(words)
            assert draw([DrawRequest(logits, sampling, u, again)], 2)[0] == places
            assert torch.equal(again.view(torch.int32), q.view(torch.int32)), variant
        library().use(None)
    assert Variant.SCALAR in library().variants


def test_a_draft_drawn_from_what_is_not_a_number_is_refused_as_by_the_tensors() -> None:
    proposal, logits = drafted("drawn", None, 12, 64)
    assert proposal.q is not None
    proposal.q[::3, 1:] = torch.nan
    proposal.q[1::3] = torch.nan
    rows = [row_of(i, KINDS[i % len(KINDS)]) for i in range(12)]
    ours = judge_sampled(range(12), rows, proposal, logits, [3] * 12)
    assert [(each.accepted, each.last, each.q) for each in ours] == [
        (each.accepted, each.last, pytest.approx(each.q)) for each in by_tensors(rows, proposal, logits)
    ]
    for mine in ours[1::3]:
        assert (mine.accepted, mine.q, mine.beta) == (0, [0.0], [0.0])
