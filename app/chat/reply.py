"""One reply: its rounds, its figures, and how far it has progressed. Independent of widgets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Self

from specchat import engine
from specchat.app.chat.rounds import Computed, ReplyFigures, ReplyRounds
from specchat.app.chat.thinking import Thought
from specchat.app.sanitize import escape_controls
from specchat.app.settings.controls import sampling_text
from specchat.app.sources.source import Part

ENDINGS: dict[engine.FinishReason, str] = {
    engine.FinishReason.EOS: "complete", engine.FinishReason.STOP: "stop string",
    engine.FinishReason.LENGTH: "token limit", engine.FinishReason.CONTEXT: "context full",
    engine.FinishReason.REPEATS: "repeats itself", engine.FinishReason.CANCELLED: "stopped",
    engine.FinishReason.ERROR: "failed",
}  # fmt: skip
"""Why a reply ended, in words."""


class Stage(StrEnum):
    """Progress of a reply."""

    WAITING = "waiting"
    """Not yet admitted: the models are loading, or every slot is in use."""
    READING = "reading"
    """Prefill of its prompt."""
    ANSWERING = "answering"
    ENDED = "ended"
    INTERRUPTED = "interrupted"
    """Stored without an end: the program was killed while it was written."""


def furthest(stages: Iterable[Stage | None]) -> Stage | None:
    """The furthest stage of running replies; None if none is running."""
    found = set(stages)
    return next((stage for stage in (Stage.ANSWERING, Stage.READING, Stage.WAITING) if stage in found), None)


class Reply:
    """The reply to one request. Its speedup is measured against the plain rounds of `baseline`, by default its own."""

    def __init__(
        self, request_id: str = "", *, drafter: str = "", gamma: str = "", baseline: engine.Baseline | None = None
    ):
        self.request_id = request_id
        self.drafter = drafter
        self.gamma = gamma
        """The requested γ, or auto; empty if unknown."""
        self.stage = Stage.WAITING
        self.prefilled = (0, 0)
        """Prompt tokens in the cache, and their total."""
        self.tail = ""
        """Answer that came with the end, or all of the answer of a reply whose rounds are unknown."""
        self._thought_tail = ""
        """Thinking that came with the end, or all of it, likewise."""
        self.held = False
        """Whether rounds are held back, and with them its start."""
        self.stopping = False
        """Whether it was told to stop, which takes up to one round."""
        self.reason: engine.FinishReason | None = None
        self.message = ""
        """Error message of a failed reply."""
        self.message_id: int | None = None
        """Its row in the store, once stored."""
        self.stepping: tuple[engine.Round, Part] | None = None
        """The round that is being stepped through; not yet in `rounds`."""
        self.model = ""
        """Its model, as named in the settings; empty if unknown."""
        self.names_model = False
        """Whether the model is shown below it: its conversation has replies of several models."""
        self.side_by_side = False
        """Whether it is compared with the reply of another lane: its speedup is the ratio of their times."""
        self.computed: dict[int, Computed] = {}
        """Top-k lists that were computed after the end, by the numbers of `starts`."""
        self._left_out: tuple[int, ...] = ()
        self._sampling: engine.Sampling | None = None
        self._baseline = baseline or engine.Baseline()
        self._rounds = ReplyRounds(self._baseline)
        self._unread: tuple[str, str, Callable[[], Sequence[str]]] | None = None
        """Answer, thinking and trace lines of a stored reply whose rounds were not read yet."""
        self._figures = self._rounds.figures(running=True)

    @classmethod
    def stored(cls, content: str, reason: str | None, read: Callable[[], Sequence[str]], thinking: str = "") -> Self:
        """A reply from the store; `read` returns its trace lines and is called on first access to the rounds.

        Unreadable lines are skipped. If the rounds do not make up the stored text, the text is shown without them.
        """
        reply = cls()
        reply._unread = content, thinking, read
        reply.stage = Stage.INTERRUPTED if reason is None else Stage.ENDED
        reply.reason = engine.FinishReason(reason) if reason in set(engine.FinishReason) else None
        if reply.reason is engine.FinishReason.ERROR:
            reply._load()  # for the error message
        return reply

    @property
    def loaded(self) -> bool:
        """Whether its rounds were read; those of a stored reply are read on first access."""
        return self._unread is None

    @property
    def numbered(self) -> ReplyRounds:
        """Its rounds with token numbers; those of a stored reply are read from its trace lines."""
        self._load()
        return self._rounds

    def _load(self) -> None:
        if self._unread is None:
            return
        (content, thinking, read), self._unread = self._unread, None
        stage, reason = self.stage, self.reason
        for line in read():
            with suppress(ValueError):
                self.add(engine.from_json(line))
        if (self.text, self._thought().strip()) != (content, thinking.strip()):
            self._rounds, self.tail, self._thought_tail = ReplyRounds(self._baseline), content, thinking
        if self.stage is not Stage.ENDED:
            self.stage, self.reason = stage, reason
        self._rounds.measured = self._rounds.measured or self._rounds.measure()
        self._figures = self._rounds.figures(running=self.running)

    @property
    def rounds(self) -> list[engine.Round]:
        """Its rounds so far."""
        return self.numbered.list

    @property
    def own_rounds(self) -> list[engine.Round]:
        """The rounds of its request, without the ones that it started with."""
        return self.numbered.own

    @property
    def starts(self) -> list[int]:
        """Number of the first token of each round, counting every drafted or emitted token."""
        return self.numbered.starts

    @property
    def tokens(self) -> int:
        """Number of drafted or emitted tokens."""
        return self.numbered.tokens

    @property
    def emitted(self) -> tuple[int, ...]:
        """Token ids of the reply so far; empty if its rounds are unknown."""
        return self.numbered.emitted

    @property
    def metrics(self) -> engine.Metrics:
        """Figures of `own_rounds`."""
        return self.numbered.metrics

    @property
    def figures(self) -> ReplyFigures:
        """The figures to draw: a snapshot of the last call of `take_figures`."""
        self._load()
        return self._figures

    @property
    def thought(self) -> Thought:
        """The thinking at its start."""
        return self.numbered.thought

    @property
    def text(self) -> str:
        """The answer so far."""
        if self._unread is not None:
            return self._unread[0]
        return "".join(record.answer for record in self.rounds) + self.tail

    @property
    def thinking(self) -> str:
        """The thinking so far."""
        return self._thought().strip()

    def _thought(self) -> str:
        if self._unread is not None:
            return self._unread[1]
        return "".join(record.thought for record in self.rounds if record.thinking) + self._thought_tail

    @property
    def has_text(self) -> bool:
        """Whether there is any text, be it thinking."""
        if self._unread is not None:
            return any(self._unread[:2])
        return bool(self.tail or self._thought_tail) or any(record.text for record in self.rounds)

    @property
    def left_out(self) -> tuple[int, ...]:
        """Indices of the messages that did not fit into the context (`Admitted.left_out`)."""
        self._load()
        return self._left_out

    @property
    def sampling(self) -> engine.Sampling | None:
        """The settings that it was drawn with; None if unknown."""
        self._load()
        return self._sampling

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
    def measured(self) -> engine.Measured | None:
        """Its final speedup; None while it is running."""
        return self.numbered.measured

    @property
    def running(self) -> bool:
        """Whether more rounds may follow."""
        return self.stage in (Stage.WAITING, Stage.READING, Stage.ANSWERING)

    def take_figures(self) -> None:
        """Update `figures`; done automatically when the reply ends."""
        if (self.metrics.rounds, self.running) != (self.figures.metrics.rounds, self.figures.running):
            self._figures = self._rounds.figures(running=self.running)

    def token(self, number: int) -> tuple[engine.Round, engine.Token]:
        """A token by its number, and its round; raises `IndexError` for an unknown number."""
        return self.numbered.token(number)

    def carry(self, rounds: Iterable[engine.Round]) -> None:
        """Start with the rounds of another reply; its own request continues them."""
        self._rounds.carry(rounds)

    def add(self, record: engine.Record | engine.Measured) -> None:
        """Add an event of this reply's request; other records are ignored."""
        match record:
            case engine.Admitted():
                self.stage = Stage.READING
                self.prefilled = (record.reused_tokens, record.prompt_tokens)
                self._left_out, self._sampling = record.left_out, record.sampling
                self._rounds.begin(self.request_id, record)
            case engine.Prefilled():
                self._baseline.add_read(record.done - self.prefilled[0], record.seconds)
                self.prefilled = (record.done, record.total)
            case engine.Round():
                self.stage, self.stepping, self.drafter = Stage.ANSWERING, None, record.drafter
                self._rounds.add(record)
            case engine.Totals():
                self._rounds.add_totals(record)
            case engine.Finished():
                ended = self._rounds.end(record)
                if ended.thinking:
                    self._thought_tail += ended.tail
                else:
                    self.tail += ended.tail
                self._end(record.reason, record.message)
            case engine.Measured():
                self._rounds.measured = record
                self._figures = self._rounds.figures(running=self.running)

    def fail(self, message: str) -> None:
        """End with an error that did not come from the engine's events."""
        self._end(engine.FinishReason.ERROR, message)

    def _end(self, reason: engine.FinishReason, message: str) -> None:
        self.stage, self.stepping, self.reason, self.message = Stage.ENDED, None, reason, message
        self._rounds.measured = self._measure()
        self.take_figures()

    def _measure(self) -> engine.Measured:
        found = replace(self._rounds.measure(), request_id=self.request_id)
        return replace(found, gain=None, rounds=0) if self.side_by_side else found


def ran_together(one: Reply, other: Reply) -> bool:
    """Whether two replies had a round in the same batch, and so exactly the same verification time."""
    ours, theirs = ({r.verify_s for r in reply.own_rounds if r.rows > 1} for reply in (one, other))
    return not ours.isdisjoint(theirs)
