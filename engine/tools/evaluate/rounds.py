"""Rounds of a drafter along a text, as generation would have had them.

The target reads the text once. A backend then answers drafts from that reading instead of computing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from specchat.engine.backends.tensor_acceptance import TensorOutcomes
from specchat.engine.backends.tensor_backend import TensorBackend, TensorRunner
from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.draft import Source
from specchat.engine.decoding.planner import Planner
from specchat.engine.decoding.round import Outcome, RoundOutcome
from specchat.engine.decoding.tree_mask import TreeMask, TreePlace
from specchat.engine.device.device import to_device
from specchat.engine.errors import EngineError
from specchat.engine.events import Outbox
from specchat.engine.request import Request
from specchat.engine.research.pass_drafter import PassDrafter
from specchat.engine.sampling.penalties import Adjustment, Penalties
from specchat.engine.sampling.sampler import one_hot
from specchat.engine.sequence.detokenizer import Detokenizer
from specchat.engine.sequence.row_constraint import Constraints
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.settings import Sampling
from specchat.engine.tools.evaluate.reading import Reading
from specchat.engine.tools.evaluate.texts import Text
from specchat.engine.worker.assembly import Assembly

LIKELY = 0.5
"""Smallest β at which a token of a sampled text counts as predicted by the drafter."""


class TextBackend(TensorBackend):
    """A backend with the target's sizes that returns logits of a reading: the text's own tokens if it is greedy.

    Logits after a draft that differs from the text are undefined. Drafters use the target itself.

    Args:
        target: gives the sizes.
    """

    def __init__(self, target: Backend) -> None:
        self.context, self.device, self.vocabulary = target.context, target.device, target.vocabulary
        self.taps, self.cache = target.taps, target.cache  # type: ignore[assignment] # `keep` does nothing
        self.embedding_rows = target.embedding_rows  # type: ignore[method-assign]
        self.output_rows = target.output_rows  # type: ignore[method-assign]
        self.reading: Reading | None = None
        """Reading of the text that is being drafted for."""
        super().__init__(target.cache.slots, _OfDrawn(target.cache.slots, target.context, target.device), None)

    def width(self, length: int) -> int:
        """Width without padding."""
        return length

    def keep(self, rows: Sequence[SequenceState], outcomes: TensorOutcomes) -> None:
        """Do nothing: the reading does not depend on the cache."""

    def extend(self, places: Sequence[TreePlace]) -> Tensor:
        """Unsupported: drafters use the target itself."""
        raise NotImplementedError

    def prefill(
        self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int], lengths: Sequence[int] | None = None
    ) -> Tensor | None:
        """Unsupported: the text has been read."""
        raise NotImplementedError

    def _forward(
        self, inputs: Tensor, slots: Sequence[int], starts: Sequence[int], tree_mask: TreeMask | None = None
    ) -> tuple[Tensor, Tensor | None]:
        reading = self.reading
        assert reading is not None
        del slots  # all rows are of one text
        depths = torch.arange(inputs.shape[1], device=self.device)[None] if tree_mask is None else tree_mask.depths
        places = to_device(starts, self.device)[:, None] + depths
        tapped = None if reading.states is None else _at(reading.states, places)
        if reading.logits is not None:
            return _at(reading.logits, places - len(reading.text.prompt) + 1), tapped
        return one_hot(_at(reading.following, places), self.vocabulary), tapped


class _OfDrawn(Penalties):
    """Penalties on logits that are the target's own; greedy texts have none, as their logits are made from the text."""

    def of(self, rows: Sequence[SequenceState], *, drafts: bool = False) -> Adjustment | None:
        """Adjustment of sampled rows; None for greedy ones."""
        return None if rows[0].greedy else super().of(rows, drafts=drafts)


def _at(values: Tensor, places: Tensor) -> Tensor:
    """Values at places, which are limited to the range of the values."""
    return values[places.clamp(0, len(values) - 1)]


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

    @classmethod
    def of(cls, outcome: Outcome, depth: int) -> Place:
        """The token at a depth of a round's draft, or after its end."""
        tests = outcome.tests
        if depth >= len(tests.p):
            return cls(depth, (), 0.0)
        others = [token for token, *_ in tests.refused[depth]] if tests.refused else []
        decided = tests.drafted[depth]
        offered = (*others, decided) if depth < outcome.accepted else (decided, *others)
        return cls(depth, tuple(dict.fromkeys(offered)), tests.beta[depth])

    @property
    def predicted(self) -> bool:
        """Whether the draft contained the token and it was accepted; for a sampled text, whether that is likely."""
        return self.beta >= LIKELY


@dataclass(slots=True)
class Course:
    """Rounds of one drafter along one text."""

    category: str
    rounds: float = 0
    emitted: int = 0
    tested: Counter[int] = field(default_factory=Counter)
    """Number of tests by draft position, from 0."""
    accepted: dict[int, float] = field(default_factory=lambda: defaultdict(int))
    """Number of them that were accepted; for sampled texts, the expected number."""
    lengths: Counter[int] = field(default_factory=Counter)
    """Draft length (`Round.steps`) to number of rounds; for sampled texts, to the expected number."""
    draft_s: float = 0.0
    """Drafting time, without the first round, which may read the prompt."""
    timed_steps: int = 0
    """Draft steps in that time."""
    pass_s: float = 0.0
    """Time of a plain pass of the target."""
    by_draft: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Tested and accepted tokens of each drafter that made a part of a draft, such as `grammar`; as above."""
    places: list[Place] = field(default_factory=list)
    """One per token of the reply."""

    def add(self, result: RoundOutcome, emitted: int, *, timed: bool, sampled: bool) -> None:
        """Count a round of one row, of which `emitted` tokens are used; the first round's draft reads the prompt."""
        (outcome,) = result.outcomes
        self._add_sources(result.drafts[0].sources, outcome, sampled=sampled)
        self.rounds += 1
        self.emitted += emitted
        self.tested.update(range(len(outcome.tests.p)))
        for depth in range(outcome.accepted):
            self.accepted[depth] += 1
        self.lengths[outcome.steps] += 1
        self.places += [Place.of(outcome, depth) for depth in range(emitted)]
        if timed:
            self.draft_s += result.draft_s
            self.timed_steps += outcome.steps

    def _add_sources(self, sources: Sequence[Source], outcome: Outcome, *, sampled: bool) -> None:
        """Count a round's draft for the drafters that made it."""
        tests = outcome.tests
        for source in sources if tests.drafted else ():
            judged = source.proposer(tests.drafted).judged(outcome.accepted, len(tests.p))
            tested, accepted = (1, tests.beta[0]) if sampled else judged
            before = self.by_draft.get(source.name, (0, 0.0))
            self.by_draft[source.name] = before[0] + tested, before[1] + accepted

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
        self._target, self._backend = made.target, TextBackend(made.target)
        self._planner = Planner(made.drafters, self._backend, _fail)
        self._runner = TensorRunner(self._backend, self._planner.drafters, self._planner.trim)
        self._tokenizer = made.model.tokenizer
        self._constraints = Constraints(self._tokenizer, made.target.vocabulary, made.model.eos_ids)

    def follows(self, text: Text, problems: list[str]) -> bool:
        """Whether a text follows its constraint, if it has one; otherwise a sentence is added to the problems."""
        try:
            if text.request:
                self._constraints.of_request(text.request, text.prompt, text.reply[:-1])  # the last may be an EOS token
        except EngineError as error:
            problems.append(f"{text.name}: {error}")
            return False
        return True

    def along(self, reading: Reading, way: Way, sampling: Sampling) -> Generator[None, None, Course]:
        """Rounds of one drafter along a text that was generated with `sampling`; a round or a chunk of prompt per step.

        Greedy rounds emit the text as generation did. Along a sampled text one position is drafted for every token, and
        nothing is drawn: β is Σ min(p, q), or with several candidates the probability that one of them is accepted. A
        round is assumed to continue with probability β from token to token, up to γ of them (Leviathan et al. 2023,
        section 3.1, with a separate β per token): drafts after the drafter's own tokens are assumed to equal drafts
        after the text.

        Raises:
            EngineError: the drafter fails.
        """
        text, sampled, drafters = reading.text, not sampling.greedy, self._planner.drafters
        row = self._row(reading, way.drafter, 1 if sampled else way.gamma, sampling)
        course = Course(text.category, pass_s=reading.pass_s)
        self._backend.reading = reading
        self._planner.admit(row)
        try:
            last = len(row.tokens) - 1
            if reading.states is not None:
                drafters.on_hidden_states([row], reading.states[None, :last])
            row.cached = last
            while not drafters.has_read(row):
                drafters.prefill([row])
                yield
            while row.emitted < len(text.reply):
                (result,) = self._runner.run(self._planner.orders([row]))
                if fault := result.drafts[0].fault:
                    _fail(row, fault)
                outcome = result.outcomes[0]
                emitted = text.reply[row.emitted :][: 1 if sampled else outcome.accepted + 1]
                start = row.cached
                row.cached += len(emitted)
                row.tokens += emitted
                if way.drafter == PassDrafter.name:  # its draft is in columns of the text, which the target reads again
                    self._target.prefill(
                        to_device([row.tokens[start : row.cached]], self._target.device), [row.slot], [start]
                    )
                drafters.on_accepted(row, emitted)
                course.add(result, len(emitted), timed=bool(row.rounds), sampled=sampled)
                row.rounds += 1
                yield
        finally:
            self._planner.release(row)
        if sampled:
            betas = [place.beta for place in course.places]
            course.accepted = {0: sum(betas)}
            starts = expected_starts(betas, way.gamma)
            course.rounds = sum(starts)
            course.lengths = expected_lengths(starts, [bool(place.offered) for place in course.places], way.gamma)
        return course

    def _row(self, reading: Reading, drafter: str, gamma: int, sampling: Sampling) -> SequenceState:
        """A row of the text's prompt, before its reply."""
        text = reading.text
        request = Request(
            text.name,
            prompt_ids=text.prompt,
            drafter=drafter,
            gamma=gamma,
            max_tokens=len(text.reply) + (not sampling.greedy),  # the last token of a sampled text is drafted for too
            sampling=sampling,
            not_drafted_from=text.without,
        )
        row = row_of(request, reading.slot, self._tokenizer)
        if text.request:
            row.constraint = self._constraints.of_request(text.request, text.prompt)
        return row


def row_of(request: Request, slot: int, tokenizer: Any) -> SequenceState:
    """A row of a request with token ids, before its reply and outside of an engine."""
    return SequenceState(
        request=request,
        outbox=Outbox(),
        slot=slot,
        tokens=list(request.prompt_ids),
        prompt_length=len(request.prompt_ids),
        cached=0,
        seed=0,
        text=Detokenizer(tokenizer, ()),
        drafter=request.drafter,
    )


def _fail(row: SequenceState, error: Exception) -> NoReturn:
    raise EngineError(f"the {row.drafter} drafter failed on {row.request.request_id}: {error}") from error


def expected_starts(betas: Sequence[float], gamma: int) -> list[float]:
    """Probability per token that a round starts with it, given the probabilities that each token continues a round."""
    starts = [0.0] * (len(betas) + gamma + 1)
    starts[0] = 1.0
    for place in range(len(betas)):
        chance = starts[place]
        for depth in range(gamma):
            beta = betas[place + depth] if place + depth < len(betas) else 0.0
            starts[place + depth + 1] += chance * (1 - beta)
            chance *= beta
        starts[place + gamma + 1] += chance
    return starts[: len(betas)]


def expected_lengths(starts: Sequence[float], offered: Sequence[bool], gamma: int) -> Counter[int]:
    """Draft length to the expected number of rounds: from its start, a draft is as long as tokens are offered.

    Args:
        starts: probability per token that a round starts with it.
        offered: whether something was drafted for each token.
        gamma: requested length.
    """
    lengths: Counter[int] = Counter()
    run = gamma  # drafts may extend beyond the end of the text
    for start, found in zip(reversed(starts), reversed(offered), strict=True):
        run = min(run + 1, gamma) if found else 0
        lengths[run] += start  # type: ignore[assignment]
    return lengths
