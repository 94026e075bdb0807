"""One reply: its rounds, its figures, and how far it has got. Knows of no widget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

from specchat.app.chat.chosen import chosen_round
from specchat.app.chat.numbered_rounds import NumberedRounds
from specchat.app.chat.reply_figures import ReplyFigures
from specchat.app.chat.reply_meter import ReplyMeter
from specchat.app.chat.thought import Thought
from specchat.app.sources.observed import rounds_of_steps
from specchat.app.sources.stepper import Part
from specchat.engine import (
    Admitted,
    Baseline,
    Finished,
    FinishReason,
    Metrics,
    Prefilled,
    Record,
    Round,
    Token,
    Totals,
    from_json,
)

if TYPE_CHECKING:
    from specchat.app.chat.computed import Computed

ENDINGS: dict[FinishReason, str] = {
    FinishReason.EOS: "complete",
    FinishReason.STOP: "stop string",
    FinishReason.LENGTH: "token limit",
    FinishReason.CONTEXT: "context full",
    FinishReason.CANCELLED: "stopped",
    FinishReason.ERROR: "failed",
}
"""Why a reply ended, in words."""


class Stage(StrEnum):
    """How far a reply has got."""

    WAITING = "waiting"
    """Not yet admitted: the models are loading, or every slot is taken."""
    READING = "reading"
    """Its prompt is entering the cache."""
    ANSWERING = "answering"
    ENDED = "ended"
    INTERRUPTED = "interrupted"
    """Stored without an end: the program was killed while it was written."""


def furthest(stages: Iterable[Stage | None]) -> Stage | None:
    """Of the stages of running replies the one that has got furthest; None where there is none."""
    found = set(stages)
    return next((stage for stage in (Stage.ANSWERING, Stage.READING, Stage.WAITING) if stage in found), None)


class Reply:
    """The rounds and figures of one request.

    Args:
        baseline: Plain rounds that its speedup is measured against, shared by the replies of a run; if not given, the
            reply's own.
    """

    def __init__(
        self, request_id: str = "", *, drafter: str = "", gamma: str = "", baseline: Baseline | None = None
    ) -> None:
        self.request_id = request_id
        self.drafter = drafter
        self.gamma = gamma
        """The γ that was asked for, or auto; empty where that is not known."""
        self.stage = Stage.WAITING
        self._unread: tuple[str, Callable[[], Sequence[str]]] | None = None
        """Text and trace lines of a stored reply whose rounds nobody has asked for yet."""
        self._numbered = NumberedRounds()
        self.prefilled = (0, 0)
        """Prompt tokens in the cache, and their total."""
        self.tail = ""
        """Text that came with the end, or all text of a reply whose rounds are unknown."""
        self.stopping = False
        """Whether it has been told to stop; it does so within one round."""
        self.reason: FinishReason | None = None
        self.message = ""
        """The sentence that came with an error."""
        self.message_id: int | None = None
        """Its row in the store, once it has one."""
        self.stepping: tuple[Round, Part] | None = None
        """The round that is being stepped through; it is not yet one of `rounds`."""
        self.model = ""
        """What it came from, as the settings named it; empty where that is not known."""
        self.names_model = False
        """Whether that is said below it: its conversation has replies of several models."""
        self.given = 0
        """How many of `rounds` the reply began with: taken over from another one, or chosen. No figure counts them."""
        self.carried = 0
        """Tokens of the rounds that were taken over."""
        self._left_out: tuple[int, ...] = ()
        self._thought = Thought()
        self._baseline = baseline or Baseline()
        self._meter = ReplyMeter(self._baseline)
        self._admitted: Admitted | None = None
        self.told = False
        """Whether a server has told what became of its tokens when they were all there: `rounds` are then others."""
        self.computed: dict[int, Computed] = {}
        """What was not recorded of its tokens and was computed afterwards, by the numbers of `starts`."""
        self._figures = self._new_figures()

    @property
    def loaded(self) -> bool:
        """Whether its rounds are there; those of a stored reply are read when they are asked for."""
        return self._unread is None

    @property
    def rounds(self) -> list[Round]:
        """Its rounds so far."""
        self._load()
        return self._numbered.rounds

    @property
    def starts(self) -> list[int]:
        """Of each round: the number of its first token, counting every token that was drafted or emitted."""
        self._load()
        return self._numbered.starts

    @property
    def tokens(self) -> int:
        """How many tokens were drafted or emitted."""
        self._load()
        return self._numbered.tokens

    @property
    def metrics(self) -> Metrics:
        """Figures of its own rounds."""
        self._load()
        return self._meter.metrics

    @property
    def figures(self) -> ReplyFigures:
        """What is drawn of its figures: as they were when `take_figures` was called last."""
        self._load()
        return self._figures

    @property
    def text(self) -> str:
        """The reply so far."""
        if self._unread is not None:
            return self._unread[0]
        return "".join(r.text for r in self.rounds) + self.tail

    @property
    def thought(self) -> Thought:
        """The thinking that it begins with, if it does."""
        self._load()
        return self._thought

    @property
    def answer(self) -> str:
        """Its text without the thinking."""
        return self.thought.split(self.text)[1]

    @property
    def has_text(self) -> bool:
        """Whether there is any text."""
        if self._unread is not None:
            return bool(self._unread[0])
        return bool(self.tail) or any(r.text for r in self.rounds)

    @property
    def left_out(self) -> tuple[int, ...]:
        """Places of the messages that the model was not told when it wrote this (`Admitted.left_out`)."""
        self._load()
        return self._left_out

    @property
    def own_rounds(self) -> list[Round]:
        """The rounds of its own request."""
        return self.rounds[self.given :]

    @property
    def emitted(self) -> tuple[int, ...]:
        """Token ids of the reply so far; none where its rounds are unknown."""
        return tuple(token for record in self.rounds for token in record.emitted)

    @property
    def running(self) -> bool:
        """Whether more may come."""
        return self.stage in (Stage.WAITING, Stage.READING, Stage.ANSWERING)

    def take_figures(self) -> None:
        """Let what is drawn show the figures as they are now; done by itself when the reply ends."""
        if (self.metrics.rounds, self.running) != (self.figures.metrics.rounds, self.figures.running):
            self._figures = self._new_figures()

    def round_of(self, token: int) -> int:
        """The index in `rounds` of the round with this token, by the numbers of `starts`."""
        self._load()
        return self._numbered.round_of(token)

    def token(self, number: int) -> tuple[Round, Token]:
        """A token by its number, and its round.

        Raises:
            IndexError: there is no such token.
        """
        self._load()
        return self._numbered.token(number)

    def rounds_up_to(self, token: int) -> list[Round]:
        """The rounds before a token that was drafted or emitted; the last of them is cut in front of it."""
        self._load()
        return self._numbered.up_to(token)

    def add(self, record: Record) -> None:
        """Take in one event of this reply's request; others are ignored."""
        match record:
            case Admitted():
                self.stage = Stage.READING
                self.prefilled = (record.reused_tokens, record.prompt_tokens)
                self._left_out = record.left_out
                self._begin_anew(record)
                self.metrics.add(record)
                self._admitted = record
            case Prefilled():
                self.prefilled = (record.done, record.total)
            case Round():
                self._add_round(record)
            case Totals():
                self._tell_apart(record)
                self.metrics.add(record)
            case Finished():
                self.stage, self.stepping = Stage.ENDED, None
                self.reason, self.message = record.reason, record.message
                self.tail += record.tail
                self.take_figures()

    def store(self, content: str, reason: str | None, read: Callable[[], Sequence[str]]) -> None:
        """Be the stored reply with this text, this end and these trace lines."""
        self._unread = content, read
        self.stage = Stage.INTERRUPTED if reason is None else Stage.ENDED
        self.reason = FinishReason(reason) if reason in set(FinishReason) else None
        if self.reason is FinishReason.ERROR:
            self._load()  # a line has the sentence

    def _load(self) -> None:
        """Read what is stored, if it has not been read."""
        if self._unread is None:
            return
        (content, read), self._unread = self._unread, None
        stage, reason = self.stage, self.reason
        for line in read():
            try:
                self.add(from_json(line))
            except ValueError:
                continue
        if self.text != content:
            self._numbered, self._meter = NumberedRounds(), ReplyMeter(self._baseline)
            self.given = self.carried = 0
            self._thought, self.tail = Thought(), content
        if self.stage is not Stage.ENDED:
            self.stage, self.reason = stage, reason
        self._figures = self._new_figures()

    def fail(self, message: str) -> None:
        """End with an error that did not come from the engine's events."""
        self.stage, self.reason, self.message = Stage.ENDED, FinishReason.ERROR, message
        self.take_figures()

    def _new_figures(self) -> ReplyFigures:
        return self._meter.figures(self.own_rounds, self._thought.figures(), running=self.running)

    def carry(self, rounds: Iterable[Round]) -> None:
        """Begin with the rounds of another reply; the own request goes on behind them."""
        for record in rounds:
            self._append(record)
        self.given, self.carried = len(self.rounds), len(self.emitted)

    def _begin_anew(self, admitted: Admitted) -> None:
        """What is there was carried over. Behind it stand the given tokens that it lacks.

        Their times are moved to before the request's own, on whose clock the timeline is drawn.
        """
        rounds, self.carried = self.rounds, len(self.emitted)
        self._thought = Thought(admitted.thinking)
        self._numbered, self._meter = NumberedRounds(), ReplyMeter(self._baseline)
        for record in rounds:
            self._append(replace(record, at=record.at + admitted.at - rounds[-1].at))
        first = admitted.prompt_tokens - len(admitted.given)
        for place, token in enumerate(admitted.given[self.carried :], self.carried):
            self._append(chosen_round(self.request_id, token, first + place, admitted.at))
        self.given = len(self.rounds)

    def _tell_apart(self, totals: Totals) -> None:
        """Put rounds in the place of tokens of unknown fate, if the server has told every pass."""
        told = (
            rounds_of_steps(self.own_rounds, totals.steps)
            if self.metrics.unknown and totals.steps is not None
            else None
        )
        if told is None:
            return
        self.told, given = True, self._numbered.rounds[: self.given]
        self._numbered = NumberedRounds()
        if self._admitted is not None:
            self._thought = Thought(self._admitted.thinking)
        for record in given:
            self._append(record)
        for record in told:
            self._append(record, own=True)
        self._meter.recount(self._admitted, told)

    def _append(self, record: Round, *, own: bool = False) -> None:
        self._thought.add(record, self._numbered.tokens, own=own)
        self._numbered.append(record)

    def _add_round(self, record: Round) -> None:
        self.stage, self.stepping = Stage.ANSWERING, None
        self._append(record, own=True)
        self._meter.add(record)
        self.drafter = record.drafter


def ran_together(one: Reply, other: Reply) -> bool:
    """Whether two replies had a round in the same batch: its times are the whole batch's, to the last digit."""
    ours, theirs = ({r.verify_s for r in reply.own_rounds if r.rows > 1} for reply in (one, other))
    return not ours.isdisjoint(theirs)


def stored_reply(content: str, reason: str | None, read: Callable[[], Sequence[str]]) -> Reply:
    """The reply that was stored as this text and the trace lines that `read` gives once they are needed.

    Lines that cannot be read are left out; if the rounds then do not give the stored text, the text wins and is shown
    without colours.
    """
    reply = Reply()
    reply.store(content, reason, read)
    return reply
