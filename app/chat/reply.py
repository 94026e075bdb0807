"""One reply: its rounds, its text, its figures, and how far it has progressed. Independent of widgets."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from specchat import engine
from specchat.app.chat.parts import parts_of
from specchat.app.chat.recorded_rounds import Recorded, RecordedRounds
from specchat.app.chat.reply_figures import LONGEST_COURSE, Counts, ReplyFigures
from specchat.app.chat.reply_stage import RUNNING, Stage
from specchat.app.chat.tool_calls import Calling
from specchat.app.chat.tree import Node
from specchat.app.sanitize import escape_controls
from specchat.app.settings.controls import sampling_text
from specchat.app.sources.observed import Unmarked, observed_round, rounds_of_steps
from specchat.app.sources.source import Part
from specchat.engine import Message, MessagePart, message_parts

CHOSEN = "chosen"
"""Drafter of a round whose token was chosen by the user or came with a text."""


@dataclass(frozen=True, slots=True)
class Computed:
    """The top-k lists of one token, computed after the reply had ended."""

    detail: engine.Detail | None
    """None if they could not be computed."""
    note: str
    """Why they could not be computed, or a caveat; may be empty."""


class Reply(Node, RecordedRounds):
    """The reply to one request. Its speedup is measured against the plain rounds of `baseline`, by default its own."""

    figures = Recorded[ReplyFigures]()
    """The figures to draw: a snapshot of the last call of `take_figures`."""
    measured = Recorded["engine.Measured | None"]()
    """The final speedup; None while it is running."""
    left_out = Recorded[tuple[int, ...]]()
    """Indices of the messages that did not fit into the context (`Admitted.left_out`)."""
    sampling = Recorded["engine.Sampling | None"]()
    """The settings that it was drawn with; None if unknown."""
    constraint = Recorded["engine.Constraint | None"]()
    """What it follows; None for free text."""
    told = Recorded[bool]()
    """Whether a server has reported the fates of all tokens at the end, which replaced the rounds."""
    _counts = Recorded[Counts]()

    def __init__(
        self, request_id: str = "", *, drafter: str = "", gamma: str = "", baseline: engine.Baseline | None = None
    ):
        super().__init__()
        self._unread: Callable[[], Sequence[str]] | None = None
        """Reads the trace lines of a stored reply, whose rounds are not known yet."""
        self.request_id, self.drafter = request_id, drafter
        self.gamma = gamma
        """The requested γ, or auto; empty if unknown."""
        self.stage = Stage.WAITING
        self.prefilled = (0, 0)
        """Prompt tokens in the cache, and their total."""
        self.tail = ""
        """Answer that came with the end, or all of the answer of a reply whose rounds are unknown."""
        self.held = False
        """Whether rounds are held back, and with them its start."""
        self.stopping = False
        """Whether it was told to stop, which takes up to one round."""
        self.reason: engine.FinishReason | None = None
        self.message = ""
        """Error message of a failed reply."""
        self.calling: Calling | None = None
        """Set while its calls are asked about and made."""
        self.stepping: tuple[engine.Round, Part] | None = None
        """The round that is being stepped through; not yet in `rounds`."""
        self.model = ""
        """Its model, as named in the settings; empty if unknown."""
        self.names_model = False
        """Whether the model is shown below it: its conversation has replies of several models."""
        self.side_by_side = False
        """Whether it is compared with the reply of another lane: its speedup is the ratio of their times."""
        self.computed: dict[int, Computed] = {}
        """Top-k lists that were computed after the end, by the number of the token."""
        self.told, self.left_out, self.sampling, self.constraint, self.measured = False, (), None, None, None
        self._admitted: engine.Admitted | None = None
        self._unmarked: Unmarked | None = None
        """Takes marks around the thinking out of the text, in records of earlier versions."""
        self._baseline = baseline or engine.Baseline()
        self._forget_rounds()
        self._counts = Counts(self._baseline)
        self.figures = self._snapshot()

    @classmethod
    def stored(cls, parts: Iterable[MessagePart], reason: str | None, read: Callable[[], Sequence[str]]) -> Self:
        """A reply from the store; `read` returns its trace lines and is called on first access to the rounds.

        Unreadable lines are skipped. If the rounds do not make up the stored text, the text is shown without them.
        """
        reply = cls()
        reply._said, reply._unread = list(parts), read
        reply.stage = Stage.INTERRUPTED if reason is None else Stage.ENDED
        reply.reason = engine.FinishReason(reason) if reason in set(engine.FinishReason) else None
        if reply.reason is engine.FinishReason.ERROR:
            reply.load()  # for the error message
        return reply

    @property
    def loaded(self) -> bool:
        """Whether its rounds were read; a stored reply reads them on first access."""
        return self._unread is None

    def load(self) -> None:
        """Read the rounds of a stored reply, unless that is done."""
        if self._unread is None:
            return
        read, self._unread = self._unread, None
        stored, stage, reason = self._said, self.stage, self.reason
        said = self.text, self.thinking
        self._said = []
        for line in read():
            with suppress(ValueError):
                self.add(engine.from_json(line))
        if (self.text, self.thinking) != said:
            self._forget_rounds()
            self._counts, self.measured = Counts(self._baseline), None
            self._said, self.tail = stored, said[0]
        if self.stage is not Stage.ENDED:
            self.stage, self.reason = stage, reason
        self.measured = self.measured or self._counts.measure()
        self.figures = self._snapshot()

    @property
    def metrics(self) -> engine.Metrics:
        """Figures of `own_rounds`."""
        return self._counts.metrics

    @property
    def as_message(self) -> Message:
        """The message for the model."""
        return Message("assistant", parts=(*message_parts(self.text, self.thinking), *self.calls))

    @property
    def origin(self) -> list[str]:
        """Its model and its sampling settings as texts, if recorded."""
        model = [escape_controls(Path(self.model).name)] if self.model else []
        return [*model, *([sampling_text(self.sampling)] if self.sampling else [])]

    @property
    def saved_s(self) -> float:
        """Least time that reading the reused tokens of the prompt would have taken; 0 if unknown."""
        read_s = self._baseline.read_s if self.measured is None else self.measured.read_s
        return self.figures.metrics.reused_tokens * read_s

    @property
    def running(self) -> bool:
        """Whether more rounds may follow."""
        return self.stage in RUNNING

    @property
    def open(self) -> bool:
        """Whether it is running, or its calls are asked about and made."""
        return self.running or self.calling is not None

    @property
    def returned(self) -> dict[str, MessagePart]:
        """The results of its calls, by the id of the call."""
        return {result.call_id: result for follower in self.children for result in follower.results}

    @property
    def unanswered(self) -> list[MessagePart]:
        """The calls that have no result."""
        known = self.returned
        return [call for call in self.calls if call.call_id not in known]

    def take_figures(self) -> None:
        """Update `figures`; done automatically when the reply ends."""
        if (self.metrics.rounds, self.running) != (self.figures.metrics.rounds, self.figures.running):
            self.figures = self._snapshot()

    def add(self, record: engine.Record | engine.Measured) -> None:
        """Add an event of this reply's request; other records are ignored."""
        match record:
            case engine.Admitted():
                self._admit(record)
            case engine.Prefilled():
                self._baseline.add_read(record.done - self.prefilled[0], record.seconds)
                self.prefilled = (record.done, record.total)
            case engine.Round():
                self.stage, self.stepping, self.drafter = Stage.ANSWERING, None, record.drafter
                record = record if self._unmarked is None else self._unmarked.round(record)
                self._append(record, own=True)
                self._counts.add(record)
            case engine.Totals():
                self._resolve(record)
                self.metrics.add(record)
            case engine.Finished():
                ended = record if self._unmarked is None else self._unmarked.finished(record)
                self.tail += "" if ended.thinking else ended.tail
                self._said += parts_of(ended)
                self._end(record.reason, record.message)
            case engine.Measured():
                self.measured = record
                self.figures = self._snapshot()

    def fail(self, message: str) -> None:
        """End with an error that did not come from the engine's events."""
        self._end(engine.FinishReason.ERROR, message)

    def stop(self) -> None:
        """End as stopped by the user, before the engine got its request."""
        self._end(engine.FinishReason.CANCELLED, "")

    def _admit(self, admitted: engine.Admitted) -> None:
        """Start the own request after the carried rounds, with a round for each other given token.

        The times of carried rounds are moved to before the request's own, on whose clock the timeline is drawn.
        """
        self.stage = Stage.READING
        self.prefilled = (admitted.reused_tokens, admitted.prompt_tokens)
        self.left_out, self.sampling, self.constraint = admitted.left_out, admitted.sampling, admitted.constraint
        rounds, self.carried = self.rounds, len(self.emitted)
        self._admitted = admitted
        self._forget_rounds()
        self._counts = Counts(self._baseline)  # a stored trace has the carried rounds before the request's own
        given = admitted.given[self.carried :]
        if admitted.thinking is not None:
            self._unmarked = Unmarked(admitted.thinking)
            rounds, given = [*map(self._unmarked.round, rounds)], tuple(map(self._unmarked.given, given))
        for record in rounds:
            self._append(replace(record, at=record.at + admitted.at - rounds[-1].at))
        first = admitted.prompt_tokens - len(admitted.given)
        for place, token in enumerate(given, self.carried):
            self._append(_chosen_round(self.request_id, token, first + place, admitted.at))
        self.given = len(self.rounds)
        self.metrics.add(admitted)

    def _resolve(self, totals: engine.Totals) -> None:
        """Replace the tokens of unknown fate by the rounds of a server that reports every pass at the end."""
        unknown = self.metrics.unknown and totals.steps is not None
        told = rounds_of_steps(self.own_rounds, totals.steps or ()) if unknown else None
        if told is None:
            return
        given, self.told = self.rounds[: self.given], True
        self._forget_rounds()
        self._counts.metrics = engine.Metrics()
        if self._admitted is not None:
            self.metrics.add(self._admitted)
        for record in given:
            self._append(record)
        self.given = len(given)
        for record in told:
            self._append(record, own=True)
            self.metrics.add(record)

    def _end(self, reason: engine.FinishReason, message: str) -> None:
        self.stage, self.stepping, self.reason, self.message = Stage.ENDED, None, reason, message
        measured = self._counts.measure(self.request_id)
        self.measured = replace(measured, gain=None, rounds=0) if self.side_by_side else measured
        self.take_figures()

    def _snapshot(self) -> ReplyFigures:
        now = self.measured or self._counts.measure()
        speeds = tuple(self._counts.speeds[-LONGEST_COURSE:])
        gammas = tuple(record.steps for record in self.own_rounds[-LONGEST_COURSE:])
        counts, thought = self.metrics.copy(), self.thought.figures()
        return ReplyFigures(counts, now.gain, now.rounds, speeds, gammas, self.running, thought)


def shared_a_batch(one: Reply, other: Reply) -> bool:
    """Whether two replies had a round in the same batch, and so exactly the same verification time."""
    ours, theirs = ({r.verify_s for r in reply.own_rounds if r.rows > 1} for reply in (one, other))
    return not ours.isdisjoint(theirs)


def _chosen_round(request_id: str, token: engine.Given, position: int, at: float) -> engine.Round:
    """A round of one given token, without draft or verification. `position` is its place in the sequence."""
    made = observed_round(request_id, 0, position, engine.Step(0, 0), (token.text,), at, 0.0)
    return replace(made, drafter=CHOSEN, last=token.id, judged=None, thinking=(True,) if token.thinking else ())
