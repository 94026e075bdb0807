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
from specchat.engine.decoding.riders import Riders
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
    wanted, riders = planner.drafters.successors(rows), plan.riders
    if isinstance(target, QuantizedRunner):
        outcomes, states, ranked = verify_on_host(target, rows, proposal, plan.gammas, verifier, wanted, riders)
        watch.mark()
        planner.drafters.witness(rows, proposal.lengths, outcomes, ranked, everywhere=True)
        if states is not None:
            planner.drafters.absorb(rows, states, [1 + outcome.accepted for outcome in outcomes])
        return plan, outcomes, timing(watch, rows, plan, planner, started)
    last = to_device([[row.tokens[-1]] for row in rows], target.device)
    fed = torch.cat([last, proposal.tokens], dim=1)
    logits, tapped = score(target, rows, fed, proposal, riders)
    own = logits if riders is None else logits[:, : fed.shape[1]]
    judged = verifier.judge(rows, own, proposal, plan.gammas)
    ranking = None
    if wanted:
        ranking = torch.cat([fed[..., None], logits[: len(rows), : fed.shape[1]].topk(wanted).indices], dim=-1).int()
    outcomes, ranked = to_host(judged, len(rows), ranking)
    watch.mark()
    planner.drafters.witness(rows, proposal.lengths, outcomes, ranked, everywhere=target.judges_all)
    accepted = [outcome.accepted for outcome in outcomes]
    if riders is not None:
        riders.hand_over(accepted, proposal.lengths, logits)
    kept = [1 + count for count in accepted]
    planner.drafters.absorb(rows, None if tapped is None else along(judged, tapped), kept)
    return plan, outcomes, timing(watch, rows, plan, planner, started)


def score(
    target: Runner, rows: Sequence[SequenceState], fed: Tensor, proposal: Proposal, riders: Riders | None
) -> tuple[Tensor, Tensor | None]:
    """The verifying pass over tokens [B, 1 + K]: logits and tapped states, and behind them the logits of what rides."""
    slots, starts = [row.slot for row in rows], [row.cached for row in rows]
    if riders is not None:
        trees = riders.trees(proposal)
        read = riders.entered(target.embedding_rows(fed), proposal.lengths)
        entered = torch.nn.utils.rnn.pad_sequence(read, batch_first=True)
        tree_mask = TreeMask.of(trees, target.width(entered.shape[1]), target.device)
        lengths = [1 + len(tree) for tree in trees]
        logits, tapped = target.forward_tapped(fed, slots, starts, tree_mask, lengths, entered)
        return logits, None if tapped is None else tapped[:, : fed.shape[1]]
    whole = proposal.whole_trees
    mask = None if whole is None else TreeMask.of(whole, target.width(fed.shape[1]), target.device)
    return target.forward_tapped(fed, slots, starts, mask, [1 + length for length in proposal.lengths])


def timing(
    watch: Stopwatch, rows: Sequence[SequenceState], plan: RoundPlan, planner: Planner, started: float
) -> Timing:
    """The times of a round; what riders add to its pass is time of drafting."""
    draft_s, verify_s = watch.seconds()
    ridden_s = verify_s * planner.riding_share(rows, plan, verify_s)
    return Timing(draft_s + ridden_s, verify_s - ridden_s, started)
