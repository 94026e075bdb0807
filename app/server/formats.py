"""Replies in OpenAI's API: from the engine's events to chunks of a stream and whole replies."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import log
from operator import or_
from typing import Any

from specchat.app.server.protocol import ApiError
from specchat.engine import Admitted, Call, Detail, Event, Finished, FinishReason, Round, TokenScore, to_json

DONE = b"data: [DONE]\n\n"
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
class Delta:
    """The part that one event adds to a choice."""

    event: Event
    text: str = ""
    """Text of the answer."""
    thinking: str = ""
    """Text of the thinking before it."""
    calls: tuple[tuple[int, Call], ...] = ()
    """Calls of tools, with their numbers."""
    logprobs: tuple[TokenLogprob, ...] = ()
    ending: str | None = None

    def then(self, later: Delta) -> Delta:
        """This part and a later one as one."""
        text, thinking = self.text + later.text, self.thinking + later.thinking
        return Delta(
            later.event, text, thinking, self.calls + later.calls, self.logprobs + later.logprobs, later.ending
        )


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
        self.index = index
        self.echo = echo
        self.prompt_tokens = 0
        self.reused_tokens = 0
        self.tokens = 0
        """Tokens of the reply."""
        self.admitted = False
        self.failure: ApiError | None = None
        """Why it ended before its end, with text."""
        self.calls = 0
        """Calls of tools."""
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
                return Delta(event, event.answer, event.thought, self._numbered(event.calls), self._with_held(event))
            case Finished():
                if event.reason is FinishReason.ERROR:
                    self.failure = ApiError(500, event.message)
                left = self._held[:-1] if event.reason is FinishReason.EOS and not self.echo else self._held
                if left and event.tail:
                    left = (*left[:-1], replace(left[-1], text=left[-1].text + event.tail))
                text, thinking = ("", event.tail) if event.thinking else (event.tail, "")
                calls = self._numbered(event.calls)
                ending = ENDINGS.get(event.reason, "tool_calls" if self.calls else "stop")
                return Delta(event, text, thinking, calls, left, ending)
        return Delta(event)

    def _numbered(self, calls: Sequence[Call]) -> tuple[tuple[int, Call], ...]:
        first, self.calls = self.calls, self.calls + len(calls)
        return tuple(enumerate(calls, first))

    def _with_held(self, event: Round) -> tuple[TokenLogprob, ...]:
        if self.top is None:
            return ()
        texts = [*event.pieces[: event.accepted], *(() if event.last is None else (event.last_piece,))]
        details = [*event.detail[: event.accepted], *(() if event.last is None else event.detail[-1:])]
        new = tuple(_logprob(text, each, self.top) for text, each in zip(texts, details, strict=True))
        known = (*self._held, *new)
        count = max((place for place, each in enumerate(known) if each.text), default=0)
        self._held = known[count:]
        return known[:count]


def _logprob(text: str, detail: Detail, top: int) -> TokenLogprob:
    likeliest = tuple((each.text, _log(each.probability)) for each in detail.target[:top])
    return TokenLogprob(text, _log(detail.probability or 0.0), likeliest)


def _finite(score: TokenScore) -> TokenScore:
    """A score without infinities, which JSON does not have."""
    top = tuple((text, max(logprob, LEAST_LOGPROB)) for text, logprob in score.top)
    return TokenScore(max(score.logprob, LEAST_LOGPROB), top)


def _log(probability: float) -> float:
    return log(probability) if probability > 0 else LEAST_LOGPROB


class Format(ABC):
    """Writes the objects of one reply."""

    joins = True
    """Whether rounds may share a chunk."""

    @abstractmethod
    def chunk(self, choice: Choice, delta: Delta) -> bytes:
        """What a stream has for one event; may be empty."""

    @abstractmethod
    def end(self, choices: Sequence[Choice], each: int, *, counts: bool) -> bytes:
        """What a stream ends with; `counts`: token counts are wanted."""

    @abstractmethod
    def whole(self, choices: Sequence[Choice], deltas: Sequence[Sequence[Delta]], each: int) -> bytes:
        """A whole reply."""


class ChoicesFormat(Format):
    """Writes a reply as a list of choices.

    Args:
        call_id: its id.
        model: the name of the model.
        created: seconds since 1970.
        speculation: whether chunks carry their records.
    """

    chunk_kind: str
    whole_kind: str

    def __init__(self, call_id: str, model: str, created: int, *, speculation: bool) -> None:
        self._head = {"id": call_id, "created": created, "model": model}
        self._chunk_head = {**self._head, "object": self.chunk_kind}
        self._speculation = speculation
        self.joins = not speculation

    def chunk(self, choice: Choice, delta: Delta) -> bytes:
        """See the base class."""
        opens = isinstance(delta.event, Admitted) and self.opens
        said = delta.text or delta.thinking or delta.calls or delta.logprobs or delta.ending
        if not (said or opens or self._speculation):
            return b""
        logprobs = self.logprobs(choice, delta.logprobs) if delta.logprobs else None
        part = self.part(delta, first=opens)
        content = {"index": choice.index, **part, "logprobs": logprobs, "finish_reason": delta.ending}
        text = _json({**self._chunk_head, "choices": [content]})
        if self._speculation:
            text = f'{text[:-1]},"speculation":{to_json(delta.event)}}}'
        return f"data: {text}\n\n".encode()

    def end(self, choices: Sequence[Choice], each: int, *, counts: bool) -> bytes:
        """See the base class."""
        parts = [{**self._chunk_head, "choices": [], "usage": usage(choices, each)}] * counts + _failure(choices)
        return b"".join(f"data: {_json(part)}\n\n".encode() for part in parts) + DONE

    def whole(self, choices: Sequence[Choice], deltas: Sequence[Sequence[Delta]], each: int) -> bytes:
        """See the base class."""
        parts = []
        for choice, own in zip(choices, deltas, strict=True):
            entries = tuple(entry for delta in own for entry in delta.logprobs)
            part = {
                "index": choice.index,
                **self.complete(reduce(Delta.then, own)),
                "logprobs": self.logprobs(choice, entries) if choice.top is not None else None,
                "finish_reason": own[-1].ending,
            }
            if self._speculation:
                part["speculation"] = [json.loads(to_json(delta.event)) for delta in own]
            parts.append(part)
        head = {**self._head, "object": self.whole_kind}
        failure: dict[str, Any] = reduce(or_, _failure(choices), {})
        return _json({**head, "choices": parts, "usage": usage(choices, each), **failure}).encode()

    opens = False
    """Whether a stream begins with a chunk without text."""

    @abstractmethod
    def part(self, delta: Delta, *, first: bool) -> dict[str, Any]:
        """Fields for the text of a chunk."""

    @abstractmethod
    def complete(self, whole: Delta) -> dict[str, Any]:
        """Fields for the text of a whole reply."""

    @abstractmethod
    def logprobs(self, choice: Choice, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Log-probabilities of some tokens of a choice."""


class ChatFormat(ChoicesFormat):
    """/v1/chat/completions."""

    chunk_kind, whole_kind, opens = "chat.completion.chunk", "chat.completion", True

    def part(self, delta: Delta, *, first: bool) -> dict[str, Any]:
        """The role in the first chunk, then text."""
        if first:
            return {"delta": {"role": "assistant", "content": ""}}
        calls = [{"index": number, **_call(call)} for number, call in delta.calls]
        said = {"content": delta.text} if delta.text else {}
        return {"delta": _said(delta.thinking) | said | ({"tool_calls": calls} if calls else {})}

    def complete(self, whole: Delta) -> dict[str, Any]:
        """One message."""
        said: dict[str, Any] = {
            "role": "assistant",
            "content": whole.text,
            "refusal": None,
            **_said(whole.thinking.strip()),
        }
        if whole.calls:
            said |= {"content": whole.text.strip() or None, "tool_calls": [_call(call) for _, call in whole.calls]}
        return {"message": said}

    def logprobs(self, choice: Choice, entries: Sequence[TokenLogprob]) -> dict[str, Any]:  # noqa: ARG002
        """One object for each token."""
        return {
            "content": [
                {**_token(entry.text, entry.logprob), "top_logprobs": [_token(*other) for other in entry.top or ()]}
                for entry in entries
            ],
            "refusal": None,
        }


class CompletionFormat(ChoicesFormat):
    """/v1/completions."""

    chunk_kind, whole_kind = "text_completion", "text_completion"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._offsets: dict[int, int] = {}
        """Characters of each choice so far."""

    def part(self, delta: Delta, *, first: bool) -> dict[str, Any]:  # noqa: ARG002
        """The text alone, as `Request.raw` leaves it."""
        return {"text": delta.text}

    def complete(self, whole: Delta) -> dict[str, Any]:
        """The text alone, as `Request.raw` leaves it."""
        return {"text": whole.text}

    def logprobs(self, choice: Choice, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Four lists of the same length."""
        offsets = []
        at = self._offsets.get(choice.index, 0)
        for entry in entries:
            offsets.append(at)
            at += len(entry.text)
        self._offsets[choice.index] = at
        return {
            "tokens": [entry.text for entry in entries],
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [None if entry.top is None else dict(reversed(entry.top)) for entry in entries],
            "text_offset": offsets,
        }


def usage(choices: Sequence[Choice], each: int) -> dict[str, Any]:
    """Token counts of a reply; a prompt counts once for `each` of its choices."""
    read = sum(choice.prompt_tokens for choice in choices[::each])
    reused = sum(choice.reused_tokens for choice in choices[::each])
    written = sum(choice.tokens for choice in choices)
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": reused},
    }


def _failure(choices: Sequence[Choice]) -> list[dict[str, Any]]:
    """The field for the error of a choice that ended before its end, if there is one."""
    return [{"error": choice.failure.fields} for choice in choices if choice.failure][:1]


def _said(thinking: str) -> dict[str, str]:
    """The field for thinking; none without any."""
    return {"reasoning_content": thinking} if thinking else {}


def _call(call: Call) -> dict[str, Any]:
    """A call of a tool."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _token(text: str, logprob: float | None) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
