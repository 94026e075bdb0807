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
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.speculation.planner import Planner, RoundPlan
from specchat.engine.speculation.proposal import Proposal
from specchat.engine.speculation.verify.agreement import compare
from specchat.engine.speculation.verify.chains import VerifiedChains
from specchat.engine.speculation.verify.outcome import Outcome, Verified, to_host
from specchat.engine.speculation.verify.trees import VerifiedTrees


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of a round in seconds; `started` is `time.perf_counter` at its start."""

    draft: float
    verify: float
    started: float


def run_round(
    target: Runner, rows: Sequence[SequenceState], planner: Planner, penalties: Penalties
) -> tuple[RoundPlan, list[Outcome], Timing]:
    """Draft and verify once for a batch of rows.

    Args:
        target: runner of the target model.
        rows: sequences ready for a round (`SequenceState.prefilled`).
        planner: chooses γ and drafts.
        penalties: bias and penalties of the rows.

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
        outcomes, states = compare_drafts(target, rows, proposal, plan.gammas)
        watch.mark()
        if states is not None:
            planner.absorb(rows, torch.nn.utils.rnn.pad_sequence(states, batch_first=True), list(map(len, states)))
        draft_s, verify_s = watch.seconds()
        return plan, outcomes, Timing(draft_s, verify_s, started)
    last = to_device([[row.tokens[-1]] for row in rows], target.device)
    fed = torch.cat([last, proposal.tokens], dim=1)
    trees = proposal.whole_trees
    tree_mask = None if trees is None else TreeMask.of(trees, target.width(fed.shape[1]), target.device)
    logits, tapped = target.forward_tapped(fed, slots, starts, tree_mask, [1 + length for length in proposal.lengths])
    adjustment = penalties.of(rows)
    if adjustment is not None:
        logits = adjustment.apply(logits, proposal.tokens)
    judged = _judge(rows, logits, plan)
    if tree_mask is not None:
        path = _path(judged, len(rows), len(tree_mask.widths))
        target.cache.keep(slots, starts, path)
        tapped = None if tapped is None else _along(path, tapped)
    outcomes = to_host(judged, len(rows))
    watch.mark()
    planner.absorb(rows, tapped, [1 + outcome.accepted for outcome in outcomes])
    draft_s, verify_s = watch.seconds()
    return plan, outcomes, Timing(draft_s, verify_s, started)


def is_plainly_greedy(rows: Sequence[SequenceState]) -> bool:
    """Whether nothing of the target's logits matters but which one is the largest."""
    requests = [row.request for row in rows]
    return all(r.sampling.greedy and r.sampling.lossless and not r.sampling.adjusts and not r.detail for r in requests)


def compare_drafts(
    target: QuantizedRunner, rows: Sequence[SequenceState], proposal: Proposal, gammas: Sequence[int]
) -> tuple[list[Outcome], list[Tensor] | None]:
    """Verify greedy rows without a tensor of logits.

    Returns:
        The outcomes, and the tapped states [1 + accepted, taps x hidden] of each row.
    """
    slots, starts = [row.slot for row in rows], [row.cached for row in rows]
    drafted = [tokens[:n] for tokens, n in zip(proposal.tokens.tolist(), proposal.lengths, strict=True)]
    trees = proposal.trees or [None] * len(rows)
    fed = [[row.tokens[-1], *tokens] for row, tokens in zip(rows, drafted, strict=True)]
    shapes = [tree or chain(n) for tree, n in zip(trees, proposal.lengths, strict=True)]
    best, tapped = target.likeliest(fed, slots, starts, shapes)
    outcomes = [compare(*each) for each in zip(rows, drafted, trees, best, gammas, strict=True)]
    for slot, start, outcome in zip(slots, starts, outcomes, strict=True):
        path = outcome.path
        if path != list(range(1, len(path) + 1)):
            target.cache.move(slot, [start + node for node in path], start + 1)
    if tapped is None:
        return outcomes, None
    return outcomes, [
        torch.from_numpy(states.numpy()[[0, *outcome.path]]) if outcome.path else states[: 1 + outcome.accepted]
        for states, outcome in zip(tapped, outcomes, strict=True)
    ]


def _judge(rows: Sequence[SequenceState], logits: Tensor, plan: RoundPlan) -> list[Verified]:
    """Verify all chains of the batch together, and all trees together."""
    trees = plan.proposal.trees
    if trees is None:
        return [VerifiedChains(range(len(rows)), rows, logits, plan.proposal, plan.gammas)]
    judged: list[Verified] = []
    for kind, are_chains in ((VerifiedChains, True), (VerifiedTrees, False)):
        mine = [i for i, tree in enumerate(trees) if (tree is None) is are_chains]
        if mine:
            part = plan.proposal.only(mine)
            seen = logits[to_device(mine, logits.device), : part.tokens.shape[1] + 1]
            judged.append(kind(mine, [rows[i] for i in mine], seen, part, [plan.gammas[i] for i in mine]))
    return judged


@torch.inference_mode()
def _path(judged: Sequence[Verified], rows: int, depth: int) -> Tensor:
    """Node of the accepted token per position, [B, γ]; for chains the position itself."""
    trees = next(part for part in judged if isinstance(part, VerifiedTrees))
    device = trees.path.device
    path = torch.arange(1, depth + 1, device=device).repeat(rows, 1)
    path[to_device(trees.mine, device), : trees.path.shape[1]] = trees.path
    return path


def _along(path: Tensor, tapped: Tensor) -> Tensor:
    """Gather hidden states [B, γ+1, n] of each row's last token and its path from states [B, T, n]."""
    places = torch.nn.functional.pad(path, (1, 0))
    return tapped[torch.arange(len(path), device=path.device)[:, None], places]
