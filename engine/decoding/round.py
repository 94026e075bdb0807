"""One round of speculative decoding: draft, score, accept, keep.

The target's cache holds every token of a row but the last. A round feeds that token and the drafted tokens in one pass;
the logits after each node verify its candidates, and those after the last accepted node give the correction or bonus
(Leviathan et al. 2023, Algorithm 1). Rolling back means leaving `SequenceState.cached` at the last accepted token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.outcome import Outcome
from specchat.engine.decoding.planner import Planner
from specchat.engine.decoding.round_plan import RoundPlan
from specchat.engine.sequence.sequence import SequenceState


class Timing(NamedTuple):
    """Times of a round in seconds; `started` is `time.perf_counter` at its start."""

    draft: float
    verify: float
    started: float


def run_round(
    target: Backend, rows: Sequence[SequenceState], planner: Planner, on_launch: Callable[[], object] = lambda: None
) -> tuple[RoundPlan, list[Outcome], Timing]:
    """Run one round for a batch of rows that are prefilled.

    Args:
        target: verifies.
        rows: B sequences.
        planner: drafts.
        on_launch: called once, when a device that computes by itself has all of the round's work.

    Returns:
        The plan with the drafts, one outcome per row, and the times of the round.
    """
    started = time.perf_counter()
    watch = target.stopwatch
    watch.start()
    plan = planner.plan(rows, target.device)
    watch.mark()
    scores = target.score(rows, plan.proposal)
    verdict = target.accept(rows, plan.proposal, scores, plan.gammas)
    target.keep(rows, verdict)
    on_launch()
    outcomes = verdict.outcomes()
    watch.mark()
    kept = [1 + outcome.accepted for outcome in outcomes]
    planner.drafters.on_hidden_states(rows, verdict.hidden_states(), kept)
    draft_s, verify_s = watch.seconds()
    growing_s = plan.proposal.growing_s
    return plan, outcomes, Timing(draft_s + growing_s, verify_s - growing_s, started)
