"""One round of speculative decoding: draft, verify, accept, roll back.

The target's cache holds every token of a row but the last. A round feeds that last token g and the drafted t₁ … tₖ in
one pass; the logits at g verify t₁, those at t₁ verify t₂, those at tₖ give the bonus (Leviathan et al. 2023,
Algorithm 1). Rolling back means leaving `SequenceState.cached` at the last accepted token. In a tree, the logits at
each node verify its children, and keys and values of the accepted branch are moved to consecutive columns.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specchat.engine.backends.quantized_runner import QuantizedRunner
from specchat.engine.backends.runner import Runner
from specchat.engine.decoding.planner import Planner
from specchat.engine.decoding.proposal import Proposal
from specchat.engine.decoding.round_plan import RoundPlan
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.decoding.verify.on_host import verify_on_host
from specchat.engine.decoding.verify.outcome import Outcome, to_host
from specchat.engine.decoding.verify.verifier import Verifier, along
from specchat.engine.device.stopwatch import Stopwatch
from specchat.engine.device.to_device import to_device
from specchat.engine.sequence.sequence import SequenceState


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of a round in seconds; `started` is `time.perf_counter` at its start."""

    draft: float
    verify: float
    started: float


def run_round(
    target: Runner, rows: Sequence[SequenceState], planner: Planner, verifier: Verifier
) -> tuple[RoundPlan, list[Outcome], Timing]:
    """Draft and verify once for a batch of rows.

    Args:
        target: runner of the target model.
        rows: sequences ready for a round (`SequenceState.prefilled`).
        planner: chooses γ and drafts.
        verifier: judges drafts.

    Returns:
        The plan with the drafts, one outcome per row, and the times of the round.
    """
    started = time.perf_counter()
    watch = Stopwatch(target.device)
    plan = planner.plan(rows, target.device)
    watch.mark()
    proposal = plan.proposal
    if isinstance(target, QuantizedRunner):
        outcomes, states = verify_on_host(target, rows, proposal, plan.gammas, verifier)
        watch.mark()
        if states is not None:
            planner.drafters.on_hidden_states(rows, states, [1 + outcome.accepted for outcome in outcomes])
        draft_s, verify_s = watch.seconds()
        return plan, outcomes, Timing(draft_s, verify_s, started)
    last = to_device([[row.tokens[-1]] for row in rows], target.device)
    fed = torch.cat([last, proposal.tokens], dim=1)
    logits, tapped = score(target, rows, fed, proposal)
    judged = verifier.judge(rows, logits, proposal, plan.gammas)
    outcomes = to_host(judged, len(rows))
    watch.mark()
    kept = [1 + outcome.accepted for outcome in outcomes]
    planner.drafters.on_hidden_states(rows, None if tapped is None else along(judged, tapped), kept)
    draft_s, verify_s = watch.seconds()
    return plan, outcomes, Timing(draft_s, verify_s, started)


def score(
    target: Runner, rows: Sequence[SequenceState], fed: Tensor, proposal: Proposal
) -> tuple[Tensor, Tensor | None]:
    """The verifying pass over tokens [B, 1 + K]: logits and tapped hidden states."""
    slots, starts = [row.slot for row in rows], [row.cached for row in rows]
    whole = proposal.whole_trees
    mask = None if whole is None else TreeMask.of(whole, target.width(fed.shape[1]), target.device)
    return target.forward_tapped(fed, slots, starts, mask, [1 + length for length in proposal.lengths])
