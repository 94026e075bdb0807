"""One round: draft, verify, accept, roll back. The heart of the engine.

The target's cache holds every token of a row but the last. A round feeds that last token g and the drafted t₁ … tₙ in
one pass; the logits at g judge t₁, those at t₁ judge t₂, those at tₙ give the bonus (Leviathan et al. 2023,
Algorithm 1). Rolling back is leaving `Row.cached` at the last token kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine import detail
from engine.acceptance import Verdict, accept, accept_greedy
from engine.cached_model import CachedModel
from engine.drafters.base import Draft, Drafter
from engine.drafters.proposal import Proposal, merge
from engine.draws import Stream, uniforms
from engine.outcome import Outcome, to_host
from engine.row import Row
from engine.sampling import SamplingRows, standardise
from engine.stopwatch import Stopwatch


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the time of a round went, in seconds; what is neither of the two is the rest."""

    draft: float
    verify: float
    started: float


def run_round(
    target: CachedModel,
    rows: Sequence[Row],
    drafters: Mapping[str, Drafter],
    on_fault: Callable[[Row, Exception], None],
) -> tuple[list[Outcome], Timing]:
    """Draft and verify once for every row, together.

    Args:
        target: the model that has the last word.
        rows: rows ready for a round (`Row.prefilled`).
        drafters: by name.
        on_fault: called with a row whose drafter raised; the row goes on without a draft.

    Returns:
        One outcome per row, and the time of the whole round.
    """
    started = time.perf_counter()
    watch = Stopwatch(target.device)
    gammas = [row.draft_room(target.context) for row in rows]
    proposal = merge(_propose(rows, gammas, drafters, on_fault), len(rows), target.device)
    watch.mark()
    fed = torch.cat([torch.tensor([[row.tokens[-1]] for row in rows], device=target.device), proposal.tokens], dim=1)
    logits = target.forward(fed, [row.slot for row in rows], [row.cached for row in rows])
    verdict, u, details = _judge(logits, rows, proposal)
    outcomes = to_host(verdict, logits, proposal, gammas, u, details)
    watch.mark()
    draft_s, verify_s = watch.seconds()
    return outcomes, Timing(draft_s, verify_s, started)


def _propose(
    rows: Sequence[Row],
    gammas: Sequence[int],
    drafters: Mapping[str, Drafter],
    on_fault: Callable[[Row, Exception], None],
) -> list[tuple[list[int], Draft]]:
    """Each drafter's draft, with the rows (by index) it is for."""
    drafts = []
    for name in dict.fromkeys(row.drafter for row in rows):
        mine = [i for i, row in enumerate(rows) if row.drafter == name and gammas[i] > 0]
        if not mine:
            continue
        try:
            draft = drafters[name].propose([rows[i] for i in mine], [gammas[i] for i in mine])
        except Exception as error:  # a drafter is a plug: whatever it raises, the target goes on alone
            for i in mine:
                on_fault(rows[i], error)
            continue
        drafts.append((mine, draft))
    return drafts


@torch.inference_mode()
def _judge(
    logits: Tensor, rows: Sequence[Row], proposal: Proposal
) -> tuple[Verdict, NDArray[np.float64], Tensor | None]:
    """Acceptance for the batch, the uniforms it used [B, γ], and the details where a row asks for them."""
    drafted = proposal.tokens
    lengths = torch.tensor(proposal.lengths, device=logits.device)
    seeds, numbers = [row.seed for row in rows], [row.rounds for row in rows]
    u = uniforms(seeds, numbers, Stream.ACCEPT, drafted.shape[1])
    settings = SamplingRows.of([row.request.sampling for row in rows], logits.device)
    p = None
    if settings.all_greedy:
        verdict = accept_greedy(logits.argmax(-1), drafted, lengths)
    else:
        u_last = uniforms(seeds, numbers, Stream.LAST, 1)[:, 0]
        p = standardise(logits, settings)
        on_device = torch.from_numpy(u).to(logits.device), torch.from_numpy(u_last).to(logits.device)
        verdict = accept(p, drafted, lengths, *on_device, proposal.q)
    k = max(row.request.detail for row in rows)
    return verdict, u, detail.pack(logits, p, settings.greedy, proposal.q, drafted, k) if k else None
