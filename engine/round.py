"""One round: draft, verify, accept, roll back. The heart of the engine.

The target's cache holds every token of a row but the last. A round feeds that last token g and the drafted t₁ … tₙ in
one pass; the logits at g judge t₁, those at t₁ judge t₂, those at tₙ give the bonus (Leviathan et al. 2023,
Algorithm 1). Rolling back is leaving `Row.cached` at the last token kept. Where the draft is a tree, the logits at each
token judge what is offered behind it, and what is kept is brought to where it belongs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cached_model import CachedModel
from engine.drafting import Drafting, Plan
from engine.forest import Forest
from engine.judged_chains import JudgedChains
from engine.judged_trees import JudgedTrees
from engine.outcome import Judged, Outcome, to_host
from engine.penalties import Penalties
from engine.row import Row
from engine.stopwatch import Stopwatch
from engine.to_device import to_device


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
    proposal = plan.proposal
    slots, starts = [row.slot for row in rows], [row.cached for row in rows]
    last = to_device([[row.tokens[-1]] for row in rows], target.device)
    fed = torch.cat([last, proposal.tokens], dim=1)
    trees = proposal.whole_trees
    forest = None if trees is None else Forest.of(trees, target.width(fed.shape[1]), target.device)
    logits, tapped = target.forward_tapped(fed, slots, starts, forest)
    adjustment = penalties.of(rows)
    if adjustment is not None:
        logits = adjustment.apply(logits, proposal.tokens)
    judged = _judge(rows, logits, plan)
    if forest is not None:
        path = _path(judged, len(rows), len(forest.widths))
        target.cache.keep(slots, starts, path)
        tapped = None if tapped is None else _along(path, tapped)
    outcomes = to_host(judged, len(rows))
    watch.mark()
    drafting.absorb(rows, tapped)
    draft_s, verify_s = watch.seconds()
    return plan, outcomes, Timing(draft_s, verify_s, started)


def _judge(rows: Sequence[Row], logits: Tensor, plan: Plan) -> list[Judged]:
    """Chains and trees of the batch, each judged together."""
    trees = plan.proposal.trees
    if trees is None:
        return [JudgedChains(range(len(rows)), rows, logits, plan.proposal, plan.gammas)]
    judged: list[Judged] = []
    for kind, are_chains in ((JudgedChains, True), (JudgedTrees, False)):
        mine = [i for i, tree in enumerate(trees) if (tree is None) is are_chains]
        if mine:
            part = plan.proposal.only(mine)
            seen = logits[to_device(mine, logits.device), : part.tokens.shape[1] + 1]
            judged.append(kind(mine, [rows[i] for i in mine], seen, part, [plan.gammas[i] for i in mine]))
    return judged


@torch.inference_mode()
def _path(judged: Sequence[Judged], rows: int, depth: int) -> Tensor:
    """Where in the pass the token of each position is [B, D]: that of a chain is where it belongs."""
    trees = next(part for part in judged if isinstance(part, JudgedTrees))
    device = trees.path.device
    path = torch.arange(1, depth + 1, device=device).repeat(rows, 1)
    path[to_device(trees.mine, device), : trees.path.shape[1]] = trees.path
    return path


def _along(path: Tensor, tapped: Tensor) -> Tensor:
    """The states [B, D+1, n] of the row's last token and of those of its path, from states [B, T, n]."""
    places = torch.nn.functional.pad(path, (1, 0))
    return tapped[torch.arange(len(path), device=path.device)[:, None], places]
