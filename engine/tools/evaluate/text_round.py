"""A round along a text: its draft is judged by the text's own tokens, without a pass of the target."""

from __future__ import annotations

import torch

from specchat.engine.decoding.planner import Planner
from specchat.engine.decoding.round_plan import RoundPlan
from specchat.engine.decoding.tree import chain
from specchat.engine.decoding.verify.agreement import compare
from specchat.engine.decoding.verify.outcome import Outcome
from specchat.engine.device.stopwatch import Stopwatch
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
    watch = Stopwatch(runner.device)
    plan = planner.plan([row], runner.device)
    watch.mark()
    proposal = plan.proposal
    count = proposal.lengths[0]
    drafted = proposal.tokens[0, :count].tolist()
    tree = proposal.trees[0] if proposal.trees else None
    last = len(reading.following) - 1
    places = [min(row.cached + depth, last) for depth in (tree or chain(count)).depths]
    outcome = compare(row, drafted, tree, [reading.following[place] for place in places], plan.gammas[0])
    watch.mark()
    if reading.states is not None:
        kept = 1 + outcome.accepted
        read = reading.states[row.cached : row.cached + kept]
        planner.drafters.on_hidden_states([row], read[None], [len(read)])
    return plan, outcome, watch.seconds()[0]
