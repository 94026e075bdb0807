"""One round: draft, verify, accept, roll back. The heart of the engine.

The target's cache holds every token of a row but the last. A round feeds that last token g and the drafted t₁ … tₙ in
one pass; the logits at g judge t₁, those at t₁ judge t₂, those at tₙ give the bonus (Leviathan et al. 2023,
Algorithm 1). Rolling back is leaving `Row.cached` at the last token kept.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine import detail
from engine.acceptance import Verdict, accept, accept_greedy, near_best
from engine.cached_model import CachedModel
from engine.drafters.proposal import Proposal
from engine.drafting import Drafting, Plan
from engine.draws import Stream, uniforms
from engine.outcome import Outcome, to_host
from engine.penalties import Penalties
from engine.row import Row
from engine.sampling import SamplingRows, most_likely, standardise
from engine.stopwatch import Stopwatch


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the time of a round went, in seconds; what is neither of the two is the rest."""

    draft: float
    verify: float
    started: float


def run_round(
    target: CachedModel, rows: Sequence[Row], drafting: Drafting, penalties: Penalties
) -> tuple[Plan, list[Outcome], Timing]:
    """Draft and verify once for every row, together.

    Args:
        target: the model that has the last word.
        rows: rows ready for a round (`Row.prefilled`).
        drafting: who drafts.
        penalties: what rows ask to be done to logits in their context.

    Returns:
        What was drafted, one outcome per row, and the time of the whole round.
    """
    started = time.perf_counter()
    watch = Stopwatch(target.device)
    plan = drafting.plan(rows, target.device)
    watch.mark()
    last = torch.tensor([[row.tokens[-1]] for row in rows], device=target.device)
    fed = torch.cat([last, plan.proposal.tokens], dim=1)
    logits, tapped = target.forward_tapped(fed, [row.slot for row in rows], [row.cached for row in rows])
    adjustment = penalties.of(rows)
    if adjustment is not None:
        logits = adjustment.apply(logits, plan.proposal.tokens)
    verdict, u, details = _judge(logits, rows, plan.proposal)
    outcomes = to_host(verdict, logits, plan.proposal, plan.gammas, u, details)
    watch.mark()
    drafting.absorb(rows, tapped)
    draft_s, verify_s = watch.seconds()
    return plan, outcomes, Timing(draft_s, verify_s, started)


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
    near = near_best(logits, drafted, settings)
    p = None
    if settings.all_greedy:
        verdict = accept_greedy(most_likely(logits), drafted, lengths, near)
    else:
        u_last = uniforms(seeds, numbers, Stream.LAST, 1)[:, 0]
        p = standardise(logits, settings)
        on_device = torch.from_numpy(u).to(logits.device), torch.from_numpy(u_last).to(logits.device)
        verdict = accept(p, drafted, lengths, *on_device, proposal.q, settings.lenience, near)
    k = max(row.request.detail for row in rows)
    return verdict, u, detail.pack(logits, p, settings.greedy, proposal.q, drafted, k) if k else None
