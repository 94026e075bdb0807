"""Verdicts of fixed shape: one serves for drafts that were drawn and for those that were not, for all settings."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specchat.engine.backends.graph_pool import GraphPool
from specchat.engine.backends.region import Regions
from specchat.engine.decoding.outcome import Outcome, to_host
from specchat.engine.decoding.proposal import Proposal
from specchat.engine.decoding.verify.chains import VerifiedChains
from specchat.engine.request import Request, Sampling
from specchat.engine.sampling.sampler import draw
from specchat.engine.sequence.sequence import SequenceState
from tests.engine.chi_square import z_score

CPU = torch.device("cpu")
WORDS, ROWS, GAMMA = 40, 6, 3
BATCHES = {
    "plain": [Sampling(temperature=1.0)],
    "small top-k": [Sampling(temperature=0.8, top_k=5)],
    "filtered": [Sampling(temperature=1.1, top_p=0.8, min_p=0.01)],
    "lenient": [Sampling(temperature=1.0, lenience=0.7)],
    "mixed": [Sampling(temperature=1.0), Sampling(temperature=0.0), Sampling(temperature=0.9, top_k=7, lenience=0.9)],
    "greedy": [Sampling(temperature=0.0)],
}


def row_of(number: int, sampling: Sampling, detail: int) -> SequenceState:
    request = Request("r", prompt_ids=(1,), sampling=sampling, detail=detail)
    return SequenceState(request, None, number, [1, 2], 1, 1, 100 + number, None, "head", rounds=5)  # type: ignore[arg-type]


def judged(
    rows: list[SequenceState], logits: Tensor, tokens: Tensor, q: Tensor | None, regions: Regions | None
) -> list[Outcome]:
    proposal = Proposal(tokens, [GAMMA] * len(rows), q)
    part = VerifiedChains(range(len(rows)), rows, logits, proposal, [GAMMA] * len(rows), regions)
    return to_host([part], len(rows))[0]


def drafts(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, tokens and what they were drawn from: often right."""
    make = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(count, GAMMA + 1, WORDS, generator=make)
    q = (logits[:, :GAMMA] + torch.randn(count, GAMMA, WORDS, generator=make)).softmax(-1)
    u = torch.rand(count * GAMMA, generator=make, dtype=torch.float64)
    return logits, draw(q.flatten(0, 1), u).view(count, GAMMA), q


@pytest.mark.parametrize("detail", [0, 3])
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
def test_outcomes_are_those_of_the_exact_shape(batch: list[Sampling], detail: int) -> None:
    logits, tokens, q = drafts(ROWS)
    rows = [row_of(number, batch[number % len(batch)], detail) for number in range(ROWS)]
    regions = Regions(GraphPool(CPU, capture=False), ROWS + 2, 64)
    greedy = all(row.request.sampling.greedy for row in rows)
    for drawn_from in (None, None if greedy else q, None):  # what the one before has left does not matter
        ours = judged(rows, logits, tokens, drawn_from, regions)
        theirs = judged(rows, logits, tokens, drawn_from, None)
        for one, other in zip(ours, theirs, strict=True):
            assert (one.drafted, one.accepted, one.last, one.u) == (other.drafted, other.accepted, other.last, other.u)
            for part in ("p", "q", "beta"):
                assert getattr(one, part) == pytest.approx(getattr(other, part), rel=1e-5, abs=1e-9)
            assert not one.broken
        if "q" in regions._shared:
            with torch.inference_mode():
                regions._shared["q"].fill_(float("nan"))
    assert len(regions.keys) == 1


@pytest.mark.parametrize("certain", [False, True])
def test_tokens_are_distributed_as_the_target_says(certain: bool) -> None:
    count = 6000
    logits, _, q = (part[:1].expand(count, *part.shape[1:]).contiguous() for part in drafts(1))
    make = torch.Generator().manual_seed(4)
    tokens = draw(q.flatten(0, 1), torch.rand(count * GAMMA, generator=make, dtype=torch.float64)).view(count, GAMMA)
    rows = [row_of(number, Sampling(temperature=1.0), 0) for number in range(count)]
    if certain:
        tokens = q[:1].argmax(-1).expand(count, -1).contiguous()
    regions = Regions(GraphPool(CPU, capture=False), count, 8)
    outcomes = judged(rows, logits, tokens, None if certain else q, regions)
    first = torch.tensor([each.drafted[0] if each.accepted else each.last for each in outcomes])
    assert abs(z_score(first, logits[0, 0].softmax(-1))) < 4
    assert 0.05 < sum(each.accepted > 0 for each in outcomes) / count < 0.95
