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

from specchat.engine.runner.quantized_runner import QuantizedRunner
from specchat.engine.runner.runner import Runner
from specchat.engine.runner.stopwatch import Stopwatch
from specchat.engine.runner.to_device import to_device
from specchat.engine.runner.tree_mask import TreeMask
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.speculation.planner import Planner
from specchat.engine.speculation.round_plan import RoundPlan
from specchat.engine.speculation.verify.on_host import verify_on_host
from specchat.engine.speculation.verify.outcome import Outcome, to_host
from specchat.engine.speculation.verify.verifier import Verifier, along


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
    slots, starts = [row.slot for row in rows], [row.cached for row in rows]
    wanted = planner.successors(rows)
    if isinstance(target, QuantizedRunner):
        outcomes, states, ranked = verify_on_host(target, rows, proposal, plan.gammas, verifier, wanted)
        watch.mark()
        planner.witness(rows, proposal.lengths, outcomes, ranked, everywhere=True)
        if states is not None:
            planner.absorb(rows, torch.nn.utils.rnn.pad_sequence(states, batch_first=True), list(map(len, states)))
        draft_s, verify_s = watch.seconds()
        return plan, outcomes, Timing(draft_s, verify_s, started)
    last = to_device([[row.tokens[-1]] for row in rows], target.device)
    fed = torch.cat([last, proposal.tokens], dim=1)
    trees = proposal.whole_trees
    tree_mask = None if trees is None else TreeMask.of(trees, target.width(fed.shape[1]), target.device)
    logits, tapped = target.forward_tapped(fed, slots, starts, tree_mask, [1 + length for length in proposal.lengths])
    judged = verifier.judge(rows, logits, proposal, plan.gammas)
    ranking = None
    if wanted:
        ranking = torch.cat([fed[..., None], logits[: len(rows), : fed.shape[1]].topk(wanted).indices], dim=-1).int()
    outcomes, ranked = to_host(judged, len(rows), ranking)
    watch.mark()
    planner.witness(rows, proposal.lengths, outcomes, ranked, everywhere=target.judges_all)
    kept = [1 + outcome.accepted for outcome in outcomes]
    planner.absorb(rows, None if tapped is None else along(judged, tapped), kept)
    draft_s, verify_s = watch.seconds()
    return plan, outcomes, Timing(draft_s, verify_s, started)
