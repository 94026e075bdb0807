"""One choice of a reply: from the engine's events to text, log-probabilities and an ending."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log

from specchat.engine import Admitted, Candidate, Detail, Event, Finished, FinishReason, Round

LEAST_LOGPROB = -9999.0
"""What the protocol writes for a probability of 0."""
ENDINGS = {
    FinishReason.EOS: "stop",
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CONTEXT: "length",
}


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One emitted token: the text it released and its log-probability under the target, with the likeliest others.

    The distribution is the one the token was drawn from (temperature, filters, penalties applied); of a greedy reply
    the softmax at temperature 1.
    """

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """What one event adds to a choice."""

    event: Event
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    ending: str | None = None

    @property
    def is_round(self) -> bool:
        """Whether it is of a round."""
        return isinstance(self.event, Round)

    def then(self, later: Delta) -> Delta:
        """Both at once."""
        return Delta(later.event, self.text + later.text, self.logprobs + later.logprobs, later.ending)


class Choice:
    """Running state of one choice.

    Args:
        index: its number in the reply.
        top: entries of the lists of likely tokens; None if no log-probabilities were asked for.
    """

    def __init__(self, index: int, top: int | None) -> None:
        self.index = index
        self.prompt_tokens = 0
        self.reused_tokens = 0
        self.tokens = 0
        """Tokens of the reply."""
        self.admitted = False
        self._top = top
        self._held: tuple[TokenLogprob, ...] = ()
        """Tokens at the end that released no text: one of them may prove to be the end of the reply."""

    def add(self, event: Event) -> Delta:
        """Take in one event of its request."""
        match event:
            case Admitted():
                self.admitted = True
                self.prompt_tokens, self.reused_tokens = event.prompt_tokens, event.reused_tokens
                return Delta(event)
            case Round():
                self.tokens += len(event.emitted)
                return Delta(event, event.text, self._with_held(event))
            case Finished():
                left = self._held[:-1] if event.reason is FinishReason.EOS else self._held
                if left and event.tail:
                    left = (*left[:-1], replace(left[-1], text=event.tail))
                return Delta(event, event.tail, left, ENDINGS.get(event.reason, "stop"))
        return Delta(event)

    def _with_held(self, event: Round) -> tuple[TokenLogprob, ...]:
        if self._top is None:
            return ()
        texts = [*event.pieces[: event.accepted], *(() if event.last is None else (event.last_piece,))]
        details = [*event.detail[: event.accepted], *(() if event.last is None else event.detail[-1:])]
        new = tuple(_logprob(text, each, self._top) for text, each in zip(texts, details, strict=True))
        known = (*self._held, *new)
        count = len(known)
        while count and not known[count - 1].text:
            count -= 1
        self._held = known[count:]
        return known[:count]


def _logprob(text: str, detail: Detail, top: int) -> TokenLogprob:
    return TokenLogprob(text, _log(detail.probability or 0.0), tuple(_entry(each) for each in detail.target[:top]))


def _entry(candidate: Candidate) -> tuple[str, float]:
    return candidate.text, _log(candidate.probability)


def _log(probability: float) -> float:
    return log(probability) if probability > 0 else LEAST_LOGPROB
