"""Replies in OpenAI's API: from the engine's events to chunks of a stream and whole replies."""

import json
from abc import abstractmethod
from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Any, Protocol

from specchat.app.server.choice import CallDelta, Choice, Delta, TokenLogprob
from specchat.engine import Admitted, Call, to_json

DONE = b"data: [DONE]\n\n"


class Format(Protocol):
    """Writes the objects of one reply."""

    joins: bool = True
    """Whether rounds may share a chunk."""

    def chunk(self, choice: Choice, delta: Delta) -> bytes:
        """What a stream has for one event; may be empty."""

    def end(self, choices: Sequence[Choice], each: int, *, counts: bool) -> bytes:
        """What a stream ends with; `counts`: token counts are wanted."""

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
        calls = [_part_of_call(each) for each in delta.calls]
        said = {"content": delta.text} if delta.text else {}
        return {"delta": _said(delta.thinking) | said | ({"tool_calls": calls} if calls else {})}

    def complete(self, whole: Delta) -> dict[str, Any]:
        """One message."""
        said: dict[str, Any] = {"role": "assistant", "content": whole.text, "refusal": None}
        said |= _said(whole.thinking.strip())
        if calls := [_call(each.call) for each in whole.calls if each.ends or whole.ending in ("length", "error")]:
            said |= {"content": whole.text.strip() or None, "tool_calls": calls}
        return {"message": said}

    def logprobs(self, choice: Choice, entries: Sequence[TokenLogprob]) -> dict[str, Any]:  # noqa: ARG002
        """One object for each token."""
        likely = ([_token(*other) for other in entry.top or ()] for entry in entries)
        tokens = [_token(e.text, e.logprob) | {"top_logprobs": top} for e, top in zip(entries, likely, strict=True)]
        return {"content": tokens, "refusal": None}


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
        top = [None if entry.top is None else dict(reversed(entry.top)) for entry in entries]
        tokens = {"tokens": [entry.text for entry in entries], "token_logprobs": [entry.logprob for entry in entries]}
        return {**tokens, "top_logprobs": top, "text_offset": offsets}


def usage(choices: Sequence[Choice], each: int) -> dict[str, Any]:
    """Token counts of a reply; a prompt counts once for `each` of its choices."""
    read = sum(choice.prompt_tokens for choice in choices[::each])
    reused = sum(choice.reused_tokens for choice in choices[::each])
    written = sum(choice.tokens for choice in choices)
    counts: dict[str, Any] = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    return counts | {"prompt_tokens_details": {"cached_tokens": reused}}


def _failure(choices: Sequence[Choice]) -> list[dict[str, Any]]:
    """The field for the error of a choice that ended before its end, if there is one."""
    return [{"error": choice.failure.fields} for choice in choices if choice.failure][:1]


def _said(thinking: str) -> dict[str, str]:
    """The field for thinking; none without any."""
    return {"reasoning_content": thinking} if thinking else {}


def _call(call: Call) -> dict[str, Any]:
    """A call of a tool."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _part_of_call(delta: CallDelta) -> dict[str, Any]:
    """What a chunk adds to a call of a tool."""
    if delta.begins:
        return {"index": delta.number, **_call(delta.call)}
    return {"index": delta.number, "function": {"arguments": delta.call.arguments}}


def _token(text: str, logprob: float | None) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
