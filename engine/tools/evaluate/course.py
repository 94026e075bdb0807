"""The rounds of one drafter along one text, as generation would have had them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from specchat.engine.outbox import Outbox
from specchat.engine.request import Request
from specchat.engine.sequence.detokenizer import Detokenizer
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.speculation.planner import Planner
from specchat.engine.tools.evaluate.text_round import run_text_round
from specchat.engine.tools.evaluate.text_runner import Reading, TextRunner


@dataclass(slots=True)
class Course:
    """What the rounds of one text came to."""

    category: str
    rounds: float = 0
    emitted: int = 0
    tested: Counter[int] = field(default_factory=Counter)
    """Tested positions, by place in the draft from 0 on."""
    accepted: dict[int, float] = field(default_factory=dict)
    """How many of them were accepted; of sampled texts, how many are expected to be."""
    lengths: Counter[int] = field(default_factory=Counter)
    """Draft steps to number of rounds."""
    draft_s: float = 0.0
    """Drafting time, without that of the first round, which may read the prompt."""
    timed_steps: int = 0
    """Draft steps in that time."""
    pass_s: float = 0.0
    """Time of a plain pass of the target."""
    drafted: list[bool] = field(default_factory=list)
    """For each token of the reply, whether it came out of a draft; of sampled texts, whether that is likely."""


def follow(runner: TextRunner, reading: Reading, planner: Planner, request: Request) -> Course:
    """Draft along a text: the greedy rounds of a reply that comes out as the text.

    Args:
        runner: that the planner plans for.
        reading: of the text.
        planner: with the drafter that the request names.
        request: its prompt and its length are the text's, its γ is fixed.
    """
    text, row = reading.text, start(runner, reading, planner, request)
    course = Course(text.category, pass_s=reading.pass_s)
    while row.emitted < len(text.reply):
        plan, outcome, draft_s = run_text_round(runner, reading, row, planner)
        left = len(text.reply) - row.emitted
        emitted = text.reply[row.emitted : row.emitted + outcome.accepted + 1]
        row.cached += min(1 + outcome.accepted, left)
        row.tokens += emitted
        planner.observe(row, emitted)
        course.rounds += 1
        course.emitted += len(emitted)
        course.tested.update(range(len(outcome.p)))
        for place in range(outcome.accepted):
            course.accepted[place] = course.accepted.get(place, 0) + 1
        course.lengths[plan.steps] += 1
        course.drafted += [place < outcome.accepted for place in range(len(emitted))]
        if row.rounds:
            course.draft_s += draft_s
            course.timed_steps += plan.steps
        row.rounds += 1
    planner.release(row)
    return course


def start(runner: TextRunner, reading: Reading, planner: Planner, request: Request) -> SequenceState:
    """A row at the beginning of its reply: the target and the drafter have read the prompt."""
    runner.reading = reading
    row = SequenceState(
        request=request,
        outbox=Outbox(),
        slot=0,
        tokens=list(reading.text.prompt),
        prompt_length=len(reading.text.prompt),
        cached=0,
        seed=0,
        text=Detokenizer(None, ()),
        drafter=request.drafter,
    )
    planner.admit(row)
    _read_prompt(row, reading, planner)
    return row


def _read_prompt(row: SequenceState, reading: Reading, planner: Planner) -> None:
    """What the target has read of the prompt reaches the drafter, and the drafter reads it too."""
    last = len(row.tokens) - 1
    if reading.states is not None:
        planner.absorb([row], reading.states[None, row.cached : last])
    row.cached = last
    while planner.unread(row):
        planner.read([row])
