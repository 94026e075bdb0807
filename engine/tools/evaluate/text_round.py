"""A round along a text: its draft is judged by the text's own tokens, without logits, and without a pass of the target
unless something rides in it."""

from __future__ import annotations

import time

import torch

from specchat.engine.decoding.planner import Planner
from specchat.engine.decoding.round import score, timing
from specchat.engine.decoding.round_plan import RoundPlan
from specchat.engine.decoding.tree import BRANCHES, chain
from specchat.engine.decoding.verify.agreement import compare
from specchat.engine.decoding.verify.outcome import Outcome
from specchat.engine.device.stopwatch import Stopwatch
from specchat.engine.device.to_device import to_device
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.tools.evaluate.text_runner import Reading, TextRunner


@torch.inference_mode()
def run_text_round(
    runner: TextRunner, reading: Reading, row: SequenceState, planner: Planner
) -> tuple[RoundPlan, Outcome, float]:
    """What `engine.decoding.round.run_round` does for a greedy row whose target says the text.

    Returns:
        The plan with the draft, what became of it, and the seconds that drafting took.
    """
    started, watch = time.perf_counter(), Stopwatch(runner.device)
    plan = planner.plan([row], runner.device)
    watch.mark()
    proposal, wanted = plan.proposal, planner.drafters.successors([row])
    count = proposal.lengths[0]
    drafted = proposal.tokens[0, :count].tolist()
    tree = proposal.trees[0] if proposal.trees else None
    last = len(reading.following) - 1
    places = [min(row.cached + depth, last) for depth in (tree or chain(count)).depths]
    outcome = compare(row, drafted, tree, [reading.following[place] for place in places], plan.gammas[0])
    if plan.riders is not None:
        fed = torch.cat([to_device([[row.tokens[-1]]], runner.device), proposal.tokens], dim=1)
        logits, _ = score(runner.target, [row], fed, proposal, plan.riders)
        plan.riders.hand_over([outcome.accepted], proposal.lengths, logits)
    watch.mark()
    if wanted:
        said = zip([row.tokens[-1], *drafted], places, strict=True)
        ranked = [[token, *_likeliest(reading, place)[:wanted]] for token, place in said]
        planner.drafters.witness([row], [count], [outcome], [ranked], everywhere=False)
    if reading.states is not None:
        kept = 1 + outcome.accepted
        read = reading.states[row.cached : row.cached + kept]
        planner.drafters.absorb([row], read[None], [len(read)])
    return plan, outcome, timing(watch, [row], plan, planner, started).draft


def _likeliest(reading: Reading, place: int) -> list[int]:
    """The text's next token, then what else the target found likely in its place."""
    said = reading.following[place]
    ranks = reading.likeliest[min(place - len(reading.text.prompt) + 1, len(reading.likeliest) - 1)]
    return [said, *(token for token in ranks if token != said)][:BRANCHES]
