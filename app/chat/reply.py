"""One reply: its rounds, its figures, and how far it has got. Knows of no widget."""

from __future__ import annotations

from bisect import bisect_right
from enum import StrEnum

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
    Speedup,
    SpeedupTracker,
    Token,
    from_json,
)

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


class Reply:
    """The rounds and figures of one request.

    Args:
        baseline: Plain rounds that its speedup is measured against, shared by the replies of a run; if not given, the
            reply's own.
    """

    def __init__(
        self, request_id: str = "", *, drafter: str = "", gamma: int | None = 0, baseline: Baseline | None = None
    ) -> None:
        self.request_id = request_id
        self.drafter = drafter
        self.gamma = gamma
        self.stage = Stage.WAITING
        self.rounds: list[Round] = []
        self.metrics = Metrics()
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
        self.starts: list[int] = []
        """Of each round: the number of its first token, counting every token that was drafted or emitted."""
        self.tokens = 0
        """How many of those there are."""
        self.stepping: tuple[Round, Part] | None = None
        """The round that is being stepped through; it is not yet one of `rounds`."""
        self._baseline = baseline or Baseline()
        self._gains = SpeedupTracker(self._baseline)
        self._sampled_at = 0.0

    @property
    def text(self) -> str:
        """The reply so far."""
        return "".join(r.text for r in self.rounds) + self.tail

    @property
    def running(self) -> bool:
        """Whether more may come."""
        return self.stage in (Stage.WAITING, Stage.READING, Stage.ANSWERING)

    @property
    def gain(self) -> Speedup | None:
        """Predicted and measured speedup, once there is something to compare with."""
        return self._gains.gain(self.metrics.alpha)

    @property
    def counted_rounds(self) -> int:
        """Rounds that `gain` is made of."""
        return self._gains.rounds

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
                self.metrics.add(record)
            case Prefilled():
                self.prefilled = (record.done, record.total)
            case Round():
                self._add_round(record)
            case Finished():
                self.stage, self.stepping = Stage.ENDED, None
                self.reason, self.message = record.reason, record.message
                self.tail += record.tail

    def fail(self, message: str) -> None:
        """End with an error that did not come from the engine's events."""
        self.stage, self.reason, self.message = Stage.ENDED, FinishReason.ERROR, message

    def _add_round(self, record: Round) -> None:
        self.stage, self.stepping = Stage.ANSWERING, None
        self.rounds.append(record)
        self.starts.append(self.tokens)
        self.tokens += len(record.drafted) + (record.last is not None)
        self._baseline.add(record)
        self._gains.add(record)
        self.drafter, self.gamma = record.drafter, record.gamma
        self.metrics.add(record)
        speed = self.metrics.recent_tokens_per_second
        if len(self.rounds) == 1:
            self._sampled_at = record.at  # the speed of one round says little
        elif speed is not None and record.at >= self._sampled_at + SAMPLE_S:
            self.speeds.append(speed)
            self._sampled_at = record.at


def ran_together(one: Reply, other: Reply) -> bool:
    """Whether two replies had a round in the same batch: its times are the whole batch's, to the last digit."""
    ours, theirs = ({r.verify_s for r in reply.rounds if r.rows > 1} for reply in (one, other))
    return not ours.isdisjoint(theirs)


def stored_reply(content: str, reason: str | None, lines: tuple[str, ...]) -> Reply:
    """The reply that was stored as this text and these trace lines.

    Lines that cannot be read are left out; if the rounds then do not give the stored text, the text wins and is shown
    without colours.
    """
    reply = Reply()
    for line in lines:
        try:
            reply.add(from_json(line))
        except ValueError:
            continue
    if reply.text != content:
        reply = Reply()
        reply.tail = content
    if reply.stage is not Stage.ENDED:
        reply.stage = Stage.INTERRUPTED if reason is None else Stage.ENDED
        reply.reason = FinishReason(reason) if reason in set(FinishReason) else None
    return reply
