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

from specchat.engine.runner.quantized_runner import QuantizedRunner
from specchat.engine.runner.runner import Runner
from specchat.engine.runner.stopwatch import Stopwatch
from specchat.engine.runner.to_device import to_device
from specchat.engine.runner.tree import chain
from specchat.engine.runner.tree_mask import TreeMask
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.speculation.planner import Planner, RoundPlan
from specchat.engine.speculation.proposal import Proposal
from specchat.engine.speculation.verify.agreement import compare
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
    if isinstance(target, QuantizedRunner) and is_plainly_greedy(rows):
        outcomes, states, ranked = compare_drafts(target, rows, proposal, plan.gammas, planner.successors(rows))
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
    wanted = planner.successors(rows)
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


def is_plainly_greedy(rows: Sequence[SequenceState]) -> bool:
    """Whether nothing of the target's logits matters but which one is the largest."""
    requests = [row.request for row in rows]
    return all(r.sampling.greedy and r.sampling.lossless and not r.sampling.adjusts and not r.detail for r in requests)


def compare_drafts(
    target: QuantizedRunner,
    rows: Sequence[SequenceState],
    proposal: Proposal,
    gammas: Sequence[int],
    successors: int = 0,
) -> tuple[list[Outcome], list[Tensor] | None, list[list[list[int]]]]:
    """Verify greedy rows without a tensor of logits.

    Returns:
        The outcomes, the tapped states [1 + accepted, taps x hidden] of each row, and each of its tokens with the
        `successors` likeliest behind it, if any are wanted.
    """
    slots, starts = [row.slot for row in rows], [row.cached for row in rows]
    drafted = [tokens[:n] for tokens, n in zip(proposal.tokens.tolist(), proposal.lengths, strict=True)]
    trees = proposal.trees or [None] * len(rows)
    fed = [[row.tokens[-1], *tokens] for row, tokens in zip(rows, drafted, strict=True)]
    shapes = [tree or chain(n) for tree, n in zip(trees, proposal.lengths, strict=True)]
    behind, tapped = target.likeliest(fed, slots, starts, shapes, max(1, successors))
    best = [[likeliest[0] for likeliest in each] for each in behind]
    ranked = []
    if successors:
        pairs = (zip(tokens, following, strict=True) for tokens, following in zip(fed, behind, strict=True))
        ranked = [[[token, *likeliest] for token, likeliest in row] for row in pairs]
    outcomes = [compare(*each) for each in zip(rows, drafted, trees, best, gammas, strict=True)]
    for slot, start, outcome in zip(slots, starts, outcomes, strict=True):
        path = outcome.path
        if path != list(range(1, len(path) + 1)):
            target.cache.move(slot, [start + node for node in path], start + 1)
    if tapped is None:
        return outcomes, None, ranked
    return (
        outcomes,
        [
            torch.from_numpy(states.numpy()[[0, *outcome.path]]) if outcome.path else states[: 1 + outcome.accepted]
            for states, outcome in zip(tapped, outcomes, strict=True)
        ],
        ranked,
    )
