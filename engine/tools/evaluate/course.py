"""The rounds of one drafter along one text, as generation would have had them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from specchat.engine.decoding.planner import Planner
from specchat.engine.outbox import Outbox
from specchat.engine.request import Request
from specchat.engine.sequence.detokenizer import Detokenizer
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.tools.evaluate.place import Place, places_of
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
    places: list[Place] = field(default_factory=list)
    """What the drafter had for each token of the reply."""

    @property
    def drafted(self) -> list[bool]:
        """For each token of the reply, whether it came out of a draft; of sampled texts, whether that is likely."""
        return [place.had for place in self.places]


def follow(runner: TextRunner, reading: Reading, planner: Planner, request: Request) -> Generator[None, None, Course]:
    """Draft along a text, a round a step: the greedy rounds of a reply that comes out as the text.

    Args:
        runner: that the planner plans for.
        reading: of the text.
        planner: with the drafter that the request names.
        request: its prompt and its length are the text's, its γ is fixed.
    """
    text = reading.text
    course = Course(text.category, pass_s=reading.pass_s)
    with begun(runner, reading, planner, request) as row:
        yield from read_prompt(row, reading, planner)
        while row.emitted < len(text.reply):
            plan, outcome, draft_s = run_text_round(runner, reading, row, planner)
            left = len(text.reply) - row.emitted
            emitted = text.reply[row.emitted : row.emitted + outcome.accepted + 1]
            row.cached += min(1 + outcome.accepted, left)
            row.tokens += emitted
            planner.drafters.on_accepted(row, emitted)
            course.rounds += 1
            course.emitted += len(emitted)
            course.tested.update(range(len(outcome.p)))
            for depth in range(outcome.accepted):
                course.accepted[depth] = course.accepted.get(depth, 0) + 1
            course.lengths[plan.steps] += 1
            course.places += places_of(outcome, emitted)
            if row.rounds:
                course.draft_s += draft_s
                course.timed_steps += plan.steps
            row.rounds += 1
            yield
    return course


@contextmanager
def begun(runner: TextRunner, reading: Reading, planner: Planner, request: Request) -> Iterator[SequenceState]:
    """A row whose reply is to begin, as long as it is drafted for."""
    runner.reading = reading
    row = SequenceState(
        request=request,
        outbox=Outbox(),
        slot=reading.slot,
        tokens=list(reading.text.prompt),
        prompt_length=len(reading.text.prompt),
        cached=0,
        seed=0,
        text=Detokenizer(None, ()),
        drafter=request.drafter,
    )
    planner.admit(row)
    try:
        yield row
    finally:
        planner.release(row)


def read_prompt(row: SequenceState, reading: Reading, planner: Planner) -> Generator[None, None, None]:
    """What the target has read of the prompt reaches the drafter, and the drafter reads it too, a chunk a step."""
    last = len(row.tokens) - 1
    if reading.states is not None:
        planner.drafters.on_hidden_states([row], reading.states[None, row.cached : last])
    row.cached = last
    while row.undrafted:
        planner.drafters.prefill([row])
        yield
