"""Drafting along a text that the target has read: the rounds of a drafter as generation would have had them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from specchat.engine.decoding.outcome import Outcome
from specchat.engine.decoding.planner import Planner
from specchat.engine.decoding.round import run_round
from specchat.engine.errors import EngineError
from specchat.engine.outbox import Outbox
from specchat.engine.request import Request, Sampling
from specchat.engine.sequence.detokenizer import Detokenizer
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.tools.evaluate.text_runner import Reading, TextBackend
from specchat.engine.worker.assembly import Assembly
from specchat.engine.worker.plain_passes import time_wider_passes

LIKELY = 0.5
"""Smallest β at which a token of a sampled text counts as predicted by the drafter."""


class Way(NamedTuple):
    """A drafter and its draft length."""

    drafter: str
    gamma: int

    def __str__(self) -> str:
        return f"{self.drafter} γ {self.gamma}"


class Place(NamedTuple):
    """One token of a text in the round that emitted it."""

    depth: int
    """Its position in the draft, from 0."""
    offered: tuple[int, ...]
    """Token ids that were proposed for it and tested, the most likely first; empty after the end of a draft."""
    beta: float
    """Probability that one of them is accepted: 0 or 1 for greedy texts."""

    @property
    def predicted(self) -> bool:
        """Whether the draft contained the token and it was accepted; for a sampled text, whether that is likely."""
        return self.beta >= LIKELY


def _places(outcome: Outcome, emitted: Sequence[int]) -> list[Place]:
    """One place per token that a round emitted."""
    return [
        Place(depth, _offered(outcome, depth), outcome.beta[depth] if depth < len(outcome.beta) else 0.0)
        for depth in range(len(emitted))
    ]


def _offered(outcome: Outcome, depth: int) -> tuple[int, ...]:
    if depth >= len(outcome.p):
        return ()
    others = [token for token, *_ in outcome.refused[depth]] if outcome.refused else []
    decided = outcome.drafted[depth]
    return tuple(dict.fromkeys((*others, decided) if depth < outcome.accepted else (decided, *others)))


@dataclass(slots=True)
class Course:
    """Rounds of one drafter along one text."""

    category: str
    rounds: float = 0
    emitted: int = 0
    tested: Counter[int] = field(default_factory=Counter)
    """Number of tests by draft position, from 0."""
    accepted: dict[int, float] = field(default_factory=dict)
    """Number of them that were accepted; for sampled texts, the expected number."""
    lengths: Counter[int] = field(default_factory=Counter)
    """Draft steps to number of rounds."""
    draft_s: float = 0.0
    """Drafting time, without the first round, which may read the prompt."""
    timed_steps: int = 0
    """Draft steps in that time."""
    pass_s: float = 0.0
    """Time of a plain pass of the target."""
    places: list[Place] = field(default_factory=list)
    """One per token of the reply."""

    @property
    def predicted(self) -> list[bool]:
        """For each token of the reply, whether it was predicted by the drafter."""
        return [place.predicted for place in self.places]


class Drafting:
    """Drafts along texts, each drafter as in generation.

    Args:
        made: models and drafters.
    """

    def __init__(self, made: Assembly) -> None:
        self._target = made.target
        self._backend = TextBackend(made.target)
        self._planner = Planner(made.drafters, self._backend, _fail)

    def learn_costs(self) -> None:
        """Measure passes of each width, for the time of look-ahead positions. Needs an idle target."""
        if self._target.capabilities.ragged:
            self._planner.learn_costs(time_wider_passes(self._target), {})

    def along(self, reading: Reading, way: Way, sampling: Sampling) -> Generator[None, None, Course]:
        """Rounds of one drafter along a text that was generated with `sampling`; a round or a chunk of prompt per step.

        Raises:
            EngineError: the drafter fails.
        """
        text, sampled = reading.text, not sampling.greedy
        request = Request(
            text.name,
            prompt_ids=text.prompt,
            drafter=way.drafter,
            gamma=1 if sampled else way.gamma,
            max_tokens=len(text.reply) + sampled,  # the last token is drafted for too
            sampling=sampling,
        )
        if sampled:
            return _expect(self._backend, reading, self._planner, request, way.gamma)
        return _follow(self._backend, reading, self._planner, request)


def _fail(row: SequenceState, error: Exception) -> NoReturn:
    raise EngineError(f"the {row.drafter} drafter failed on {row.request.request_id}: {error}") from error


def _follow(
    backend: TextBackend, reading: Reading, planner: Planner, request: Request
) -> Generator[None, None, Course]:
    """Greedy rounds of a reply that equals the text, one per step of the generator.

    Args:
        backend: runner that the planner plans for.
        reading: reading of the text.
        planner: has the drafter that the request names.
        request: has the text's prompt and length, and a fixed γ.
    """
    text = reading.text
    course = Course(text.category, pass_s=reading.pass_s)
    with _started(backend, reading, planner, request) as row:
        yield from _read_prompt(row, reading, planner)
        while row.emitted < len(text.reply):
            plan, (outcome,), timing = run_round(backend, [row], planner)
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
            course.places += _places(outcome, emitted)
            if row.rounds:
                course.draft_s += timing.draft
                course.timed_steps += plan.steps
            row.rounds += 1
            yield
    return course


def _expect(
    backend: TextBackend, reading: Reading, planner: Planner, request: Request, gamma: int
) -> Generator[None, None, Course]:
    """Expected rounds along a sampled text: draft one position for every token, and compute each β.

    β is Σ min(p, q), or with several candidates the probability that one of them is accepted; nothing is drawn. A round
    is assumed to continue with probability β from token to token, up to γ of them (Leviathan et al. 2023, section 3.1,
    with a separate β per token): drafts after the drafter's own tokens are assumed to equal those after the text.

    Args:
        backend: returns the logits of the reading.
        reading: reading of the text, with its logits.
        planner: has the drafter that the request names.
        request: has the text's prompt, length and temperature, and γ 1.
        gamma: γ of the expected rounds.
    """
    text = reading.text
    course = Course(text.category, pass_s=reading.pass_s, emitted=len(text.reply))
    with _started(backend, reading, planner, request) as row:
        yield from _read_prompt(row, reading, planner)
        for token in text.reply:
            plan, (outcome,), timing = run_round(backend, [row], planner)
            row.cached += 1
            row.tokens.append(token)
            planner.drafters.on_accepted(row, [token])
            if outcome.beta:
                course.tested[0] += 1
            course.places += _places(outcome, [token])
            if row.rounds:
                course.draft_s += timing.draft
                course.timed_steps += plan.steps
            row.rounds += 1
            yield
    betas = [place.beta for place in course.places]
    course.accepted[0] = sum(betas)
    course.rounds = expected_rounds(betas, gamma)
    course.lengths = Counter({gamma: round(course.rounds)})
    return course


def expected_rounds(betas: Sequence[float], gamma: int) -> float:
    """Expected number of rounds of a text whose tokens have these probabilities to continue a round."""
    starts = [0.0] * (len(betas) + gamma + 1)
    starts[0] = 1.0
    for place in range(len(betas)):
        chance = starts[place]
        for depth in range(gamma):
            beta = betas[place + depth] if place + depth < len(betas) else 0.0
            starts[place + depth + 1] += chance * (1 - beta)
            chance *= beta
        starts[place + gamma + 1] += chance
    return sum(starts[: len(betas)])


@contextmanager
def _started(backend: TextBackend, reading: Reading, planner: Planner, request: Request) -> Iterator[SequenceState]:
    """A row before its reply, admitted to the drafter; released at the end."""
    backend.reading = reading
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


def _read_prompt(row: SequenceState, reading: Reading, planner: Planner) -> Generator[None, None, None]:
    """Give the drafter the target's hidden states of the prompt, and let it read the prompt, a chunk per step."""
    last = len(row.tokens) - 1
    if reading.states is not None:
        planner.drafters.on_hidden_states([row], reading.states[None, row.cached : last])
    row.cached = last
    while row.undrafted:
        planner.drafters.prefill([row])
        yield
