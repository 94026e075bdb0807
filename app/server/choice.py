"""The choices of a reply: what each event of the engine adds to one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log

from specchat.app.server.errors import ApiError
from specchat.engine import Admitted, Call, Detail, Event, Finished, FinishReason, Round, TokenScore

LEAST_LOGPROB = -9999.0
"""Log-probability of a probability of 0 in the protocol."""
ENDINGS = {
    FinishReason.LENGTH: "length", FinishReason.CONTEXT: "length", FinishReason.REPEATS: "repeats",
    FinishReason.ERROR: "error",
}  # fmt: skip
"""Reasons other than "stop" in the protocol."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One emitted token: its text, its log-probability under the target, and the likeliest tokens.

    The distribution is that of the draw (temperature, filters and penalties applied); of a greedy reply, the softmax
    at temperature 1.
    """

    text: str
    logprob: float | None
    """None for the first token of a text."""
    top: tuple[tuple[str, float], ...] | None


@dataclass(frozen=True, slots=True)
class CallDelta:
    """The part that is added to a call of a tool."""

    number: int
    """Number of the call in the reply, from 0."""
    call: Call
    """The call, with the text that is added to its arguments."""
    begins: bool
    ends: bool


def merged(deltas: Sequence[CallDelta]) -> tuple[CallDelta, ...]:
    """Parts of calls as one part of each, in the order of the calls."""
    parts: dict[int, CallDelta] = {}
    for delta in deltas:
        begun = parts.get(delta.number)
        if begun is not None:
            call = begun.call._replace(arguments=begun.call.arguments + delta.call.arguments)
            delta = replace(delta, call=call, begins=begun.begins)
        parts[delta.number] = delta
    return tuple(parts[number] for number in sorted(parts))


@dataclass(frozen=True, slots=True)
class Delta:
    """The part that one event adds to a choice."""

    event: Event
    text: str = ""
    """Text of the answer."""
    thinking: str = ""
    """Text of the thinking before it."""
    calls: tuple[CallDelta, ...] = ()
    """What is added to calls of tools, in their order."""
    logprobs: tuple[TokenLogprob, ...] = ()
    ending: str | None = None

    def then(self, later: Delta) -> Delta:
        """This part and a later one as one."""
        text, thinking = self.text + later.text, self.thinking + later.thinking
        calls = merged([*self.calls, *later.calls])
        return Delta(later.event, text, thinking, calls, self.logprobs + later.logprobs, later.ending)


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt as the beginning of a reply's text."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()

    @classmethod
    def of(cls, text: str, pieces: Sequence[str], scores: Sequence[TokenScore] | None) -> Echo:
        """A prompt with the text and the scores of its tokens; without scores it has no log-probabilities."""
        if scores is None:
            return cls(text)
        rest = zip(pieces[1:], scores, strict=True)
        first = TokenLogprob(pieces[0], None, None)
        return cls(text, (first, *(TokenLogprob(piece, *_finite(each)) for piece, each in rest)))


class Choice:
    """Running state of one choice.

    Args:
        index: its number in the reply.
        top: length of the lists of likely tokens; None for no log-probabilities.
        echo: the prompt, if the reply's text begins with it; then an end-of-sequence token is reported too.
    """

    def __init__(self, index: int, top: int | None, echo: Echo | None = None) -> None:
        self.index, self.echo = index, echo
        self.prompt_tokens = 0
        self.reused_tokens = 0
        self.tokens = 0
        """Tokens of the reply."""
        self.admitted = False
        self.failure: ApiError | None = None
        """Why it ended before its end, with text."""
        self._calls: dict[str, tuple[int, int]] = {}
        """Number of each call of a tool, and characters of its arguments so far, by id."""
        self._called = False
        """Whether a call is complete."""
        self._open: str | None = None
        """Id of the call that is being written."""
        self.top = top
        self._held: tuple[TokenLogprob, ...] = ()
        """Tokens from the last one with text on, to which the end may add; an end-of-sequence token is not reported."""

    def add(self, event: Event) -> Delta:
        """The part that one event of its request adds."""
        match event:
            case Admitted():
                self.admitted = True
                self.prompt_tokens, self.reused_tokens = event.prompt_tokens, event.reused_tokens
                return Delta(event, self.echo.text, logprobs=self.echo.logprobs) if self.echo else Delta(event)
            case Round():
                self.tokens += len(event.emitted)
                calls = self._with_calls(event.call_parts, event.calls, event.answer)
                return Delta(event, event.answer, event.thought, calls, self._with_held(event))
            case Finished():
                if event.reason is FinishReason.ERROR:
                    self.failure = ApiError(500, event.message)
                cut, calls = self._open, self._with_calls((), event.calls, "")
                left = self._held[:-1] if event.reason is FinishReason.EOS and not self.echo else self._held
                left = tuple(each for each in left if each.text) if self._calls else left
                if left and event.tail:
                    left = (*left[:-1], replace(left[-1], text=left[-1].text + event.tail))
                tail = "" if cut and not event.calls else event.tail  # the rest of a call that is cut
                text, thinking = ("", tail) if event.thinking else (tail, "")
                ending = ENDINGS.get(event.reason, "tool_calls" if self._called else "stop")
                return Delta(event, text, thinking, calls, left, ending)
        return Delta(event)

    def _with_calls(self, parts: Sequence[Call], calls: Sequence[Call], answer: str) -> tuple[CallDelta, ...]:
        """What parts of calls and complete calls add; text of the answer ends a call that turns out to be none."""
        self._open = None if answer else self._open
        made = []
        for part in parts:
            number, sent = self._calls.get(part.id, (len(self._calls), 0))
            made.append(CallDelta(number, part, part.id not in self._calls, ends=False))
            self._calls[part.id] = number, sent + len(part.arguments)
            self._open = part.id
        for call in calls:
            number, sent = self._calls.get(call.id, (len(self._calls), 0))
            rest = call._replace(arguments=call.arguments[sent:])
            made.append(CallDelta(number, rest, call.id not in self._calls, ends=True))
            self._calls[call.id] = number, len(call.arguments)
            self._called, self._open = True, None if self._open == call.id else self._open
        return merged(made)

    def _with_held(self, event: Round) -> tuple[TokenLogprob, ...]:
        if self.top is None:
            return ()
        texts = [*event.pieces[: event.accepted], *(() if event.last is None else (event.last_piece,))]
        details = [*event.detail[: event.accepted], *(() if event.last is None else event.detail[-1:])]
        new = tuple(_logprob(text, each, self.top) for text, each in zip(texts, details, strict=True))
        known = (*self._held, *new)
        count = max((place for place, each in enumerate(known) if each.text), default=0)
        self._held = known[count:]
        return tuple(each for each in known[:count] if each.text) if self._calls else known[:count]


def _logprob(text: str, detail: Detail, top: int) -> TokenLogprob:
    likeliest = tuple((each.text, _log(each.probability)) for each in detail.target[:top])
    return TokenLogprob(text, _log(detail.probability or 0.0), likeliest)


def _finite(score: TokenScore) -> TokenScore:
    """A score without infinities, which JSON does not have."""
    top = tuple((text, max(logprob, LEAST_LOGPROB)) for text, logprob in score.top)
    return TokenScore(max(score.logprob, LEAST_LOGPROB), top)


def _log(probability: float) -> float:
    return log(probability) if probability > 0 else LEAST_LOGPROB
