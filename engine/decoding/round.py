"""One round of speculative decoding: draft, score, accept, keep.

The target's cache holds every token of a row but the last. A round feeds that token and the drafted tokens in one pass;
the logits after each node verify its candidates, and those after the last accepted node give the correction or bonus
(Leviathan et al. 2023, Algorithm 1). Rolling back means leaving `SequenceState.cached` at the last accepted token.

Where passes are short, a backend may run several rounds in one call (multi-step scheduling in vLLM): a pass evicts the
host's code and data from the processor's caches, so that work between two passes takes longer than it does once again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from specchat.engine.decoding.backend import Backend, VerifiedRound
from specchat.engine.decoding.outcome import Outcome
from specchat.engine.decoding.planner import Planner
from specchat.engine.decoding.round_plan import RoundPlan
from specchat.engine.sequence.sequence import SequenceState


class RoundResult(NamedTuple):
    """Result of a round, and its times in seconds."""

    plan: RoundPlan
    """With the drafts."""
    outcomes: list[Outcome]
    """Of each row."""
    draft_s: float
    verify_s: float


def run_rounds(
    target: Backend,
    rows: Sequence[SequenceState],
    planner: Planner,
    on_launch: Callable[[], object] = lambda: None,
    together: Callable[[], bool] = lambda: False,
) -> list[RoundResult]:
    """Run one round for a batch of rows that are prefilled, or some of them.

    Args:
        target: verifies.
        rows: B sequences.
        planner: drafts.
        on_launch: called once, when a device that computes by itself has all of the round's work.
        together: says whether several rounds may be run, for which the cache has blocks then.
    """
    watch = target.stopwatch
    watch.start()
    plan = planner.plan(rows, target.device, together)
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
    last = VerifiedRound(plan.proposal, outcomes, verify_s - sum(each.seconds for each in verdict.earlier))
    rounds = [*verdict.earlier, last]
    return [
        RoundResult(
            plan if each is last else replace(plan, proposal=each.proposal),
            each.outcomes,
            draft_s / len(rounds) + each.proposal.growing_s,
            each.seconds - each.proposal.growing_s,
        )
        for each in rounds
    ]
