"""One reply: its rounds, its figures, and how far it has got. Knows of no widget."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

from specchat.app.chat.reply_figures import LONGEST_COURSE, ReplyFigures
from specchat.app.chat.thought import Thought
from specchat.app.sources.observed import told_apart
from specchat.app.sources.stepper import Part
from specchat.engine import (
    Admitted,
    Baseline,
    Fate,
    Finished,
    FinishReason,
    Given,
    Metrics,
    Prefilled,
    Record,
    Round,
    SpeedupTracker,
    Token,
    Totals,
    from_json,
)

if TYPE_CHECKING:
    from specchat.app.chat.computed import Computed

SAMPLE_S = 0.25
"""Seconds of rounds for each sample of the speed."""

ENDINGS: dict[FinishReason, str] = {
    FinishReason.EOS: "complete",
    FinishReason.STOP: "stop string",
    FinishReason.LENGTH: "token limit",
    FinishReason.CONTEXT: "context full",
    FinishReason.CANCELLED: "stopped",
    FinishReason.ERROR: "failed",
}
"""Why a reply ended, in words."""
CHOSEN = "chosen"
"""The drafter of a round whose token the user has put in the place of what was drawn, or that came with a text."""


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
        self._rounds: list[Round] = []
        self._metrics = Metrics()
        self.speeds: list[float] = []
        """Tokens per second of the sliding window, one sample each `SAMPLE_S`."""
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
        self._starts: list[int] = []
        self._tokens = 0
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
        self._gains = SpeedupTracker(self._baseline)
        self._sampled_at = 0.0
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
        return self._rounds

    @property
    def starts(self) -> list[int]:
        """Of each round: the number of its first token, counting every token that was drafted or emitted."""
        self._load()
        return self._starts

    @property
    def tokens(self) -> int:
        """How many tokens were drafted or emitted."""
        self._load()
        return self._tokens

    @property
    def metrics(self) -> Metrics:
        """Figures of its own rounds."""
        self._load()
        return self._metrics

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
        return bisect_right(self.starts, token) - 1

    def token(self, number: int) -> tuple[Round, Token]:
        """A token by its number, and its round.

        Raises:
            IndexError: there is no such token.
        """
        if not 0 <= number < self.tokens:
            raise IndexError(number)
        index = self.round_of(number)
        record = self.rounds[index]
        return record, list(record.tokens())[number - self.starts[index]]

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
            self._rounds, self._starts, self._tokens, self.given, self.carried = [], [], 0, 0, 0
            self._metrics, self._gains, self.speeds = Metrics(), SpeedupTracker(self._baseline), []
            self._thought, self.tail = Thought(), content
        if self.stage is not Stage.ENDED:
            self.stage, self.reason = stage, reason
        self._figures = self._new_figures()

    def fail(self, message: str) -> None:
        """End with an error that did not come from the engine's events."""
        self.stage, self.reason, self.message = Stage.ENDED, FinishReason.ERROR, message
        self.take_figures()

    def _new_figures(self) -> ReplyFigures:
        return ReplyFigures(
            metrics=self.metrics.copy(),
            gain=self._gains.gain(self.metrics.alpha),
            counted_rounds=self._gains.rounds,
            speeds=tuple(self.speeds[-LONGEST_COURSE:]),
            gammas=tuple(record.gamma for record in self.own_rounds[-LONGEST_COURSE:]),
            running=self.running,
            thought=self._thought.figures(),
        )

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
        self._rounds, self._starts, self._tokens = [], [], 0
        self._metrics, self._gains, self.speeds = Metrics(), SpeedupTracker(self._baseline), []
        for record in rounds:
            self._append(replace(record, at=record.at + admitted.at - rounds[-1].at))
        first = admitted.prompt_tokens - len(admitted.given)
        for place, token in enumerate(admitted.given[self.carried :], self.carried):
            self._append(_chosen(record_id=self.request_id, token=token, position=first + place, at=admitted.at))
        self.given = len(self.rounds)

    def _tell_apart(self, totals: Totals) -> None:
        """Put rounds in the place of tokens of unknown fate, if the server has told every pass."""
        told = told_apart(self.own_rounds, totals.steps) if self.metrics.unknown and totals.steps is not None else None
        if told is None:
            return
        self.told, rounds = True, [*self._rounds[: self.given], *told]
        self._rounds, self._starts, self._tokens, self._metrics = [], [], 0, Metrics()
        if self._admitted is not None:
            self._thought = Thought(self._admitted.thinking)
            self.metrics.add(self._admitted)
        for index, record in enumerate(rounds):
            self._append(record, own=index >= self.given)
            if index >= self.given:
                self.metrics.add(record)

    def _append(self, record: Round, *, own: bool = False) -> None:
        self._thought.add(record, self._tokens, own=own)
        self._rounds.append(record)
        self._starts.append(self._tokens)
        self._tokens += len(record.drafted) + (record.last is not None)

    def _add_round(self, record: Round) -> None:
        self.stage, self.stepping = Stage.ANSWERING, None
        self._append(record, own=True)
        self._baseline.add(record)
        self._gains.add(record)
        self.drafter = record.drafter
        self.metrics.add(record)
        speed = self.metrics.recent_tokens_per_second
        if len(self.rounds) == self.given + 1:
            self._sampled_at = record.at  # the speed of one round says little
        elif speed is not None and record.at >= self._sampled_at + SAMPLE_S:
            self.speeds.append(speed)
            self._sampled_at = record.at


def ran_together(one: Reply, other: Reply) -> bool:
    """Whether two replies had a round in the same batch: its times are the whole batch's, to the last digit."""
    ours, theirs = ({r.verify_s for r in reply.own_rounds if r.rows > 1} for reply in (one, other))
    return not ours.isdisjoint(theirs)


def rounds_up_to(reply: Reply, token: int) -> list[Round]:
    """The rounds of a reply before a token that was drafted or emitted; the last of them is cut in front of it.

    Before a rejected or discarded token and before a correction stand the accepted tokens of their round.
    """
    if token >= reply.tokens:
        return list(reply.rounds)
    index = reply.round_of(token)
    record, place = reply.rounds[index], token - reply.starts[index]
    kept = min(place, record.accepted)
    if not kept:
        return reply.rounds[:index]
    cut = replace(
        record,
        drafted=record.drafted[:kept],
        p=record.p[:kept],
        q=record.q[:kept],
        u=record.u[:kept],
        beta=record.beta[:kept],
        accepted=kept,
        last=None,
        last_fate=None,
        pieces=record.pieces[:kept],
        last_piece="",
        detail=record.detail[:kept],
        refused=record.refused[:kept],
    )
    return [*reply.rounds[:index], cut]


def _chosen(record_id: str, token: Given, position: int, at: float) -> Round:
    """A round that drafted and verified nothing: its token was given."""
    return Round(
        request_id=record_id,
        number=0,
        position=position,
        drafter=CHOSEN,
        gamma=0,
        drafted=(),
        p=(),
        q=(),
        u=(),
        beta=(),
        accepted=0,
        last=token.id,
        last_fate=Fate.PLAIN,
        pieces=(),
        last_piece=token.text,
        at=at,
        draft_s=0.0,
        verify_s=0.0,
        rest_s=0.0,
        rows=1,
    )


def stored_reply(content: str, reason: str | None, read: Callable[[], Sequence[str]]) -> Reply:
    """The reply that was stored as this text and the trace lines that `read` gives once they are needed.

    Lines that cannot be read are left out; if the rounds then do not give the stored text, the text wins and is shown
    without colours.
    """
    reply = Reply()
    reply.store(content, reason, read)
    return reply
