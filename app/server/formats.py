"""Objects of OpenAI's API: chunks of a stream and whole replies, of chats and of completions."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from specchat.app.server.choice import Choice, Delta, TokenLogprob
from specchat.engine import Admitted, Finished, Loading, Notice, Prefilled, Ready, Round, to_json

_RECORDS = (Ready, Loading, Admitted, Prefilled, Round, Notice, Finished)
_NO_EVENT = Notice(None, "", 0.0)
_MARK = "\0"
DONE = b"data: [DONE]\n\n"


class Format(ABC):
    """The objects of one reply.

    Args:
        call_id: its id.
        model: the name of the model.
        created: seconds since 1970.
        speculation: whether chunks carry their records.
        with_logprobs: whether log-probabilities were asked for.
    """

    chunk_kind: str
    whole_kind: str

    def __init__(self, call_id: str, model: str, created: int, *, speculation: bool, with_logprobs: bool) -> None:
        self._head = {"id": call_id, "created": created, "model": model}
        self._chunk_head = {**self._head, "object": self.chunk_kind}
        self._speculation = speculation
        self._with_logprobs = with_logprobs
        self._around: dict[int, tuple[str, str]] = {}
        """Of each choice, what stands before and behind the text in a chunk that has nothing else to say."""

    @property
    def joins(self) -> bool:
        """Whether a chunk may say what several rounds add: none has a record to carry."""
        return not self._speculation

    def chunk(self, choice: Choice, delta: Delta) -> bytes:
        """The chunk of a stream for one event; empty if it has nothing to say."""
        opens = isinstance(delta.event, Admitted) and self.opens
        if not (delta.text or delta.logprobs or delta.ending or opens or self._speculation):
            return b""
        if delta.text and not (delta.logprobs or delta.ending or opens):
            before, behind = self._around.get(choice.index) or self._wrapping(choice)
            text = f"{before}{json.dumps(delta.text)}{behind}"
        else:
            text = self._chunk(choice, delta, opens=opens)
        if self._speculation:
            text = f'{text[:-1]},"speculation":{to_json(delta.event)}}}'
        return f"data: {text}\n\n".encode()

    def _chunk(self, choice: Choice, delta: Delta, *, opens: bool) -> str:
        logprobs = self.logprobs(choice, delta.logprobs) if self._with_logprobs and delta.logprobs else None
        part = self.part(delta.text, first=opens)
        content = {"index": choice.index, **part, "logprobs": logprobs, "finish_reason": delta.ending}
        return _json({**self._chunk_head, "choices": [content]})

    def _wrapping(self, choice: Choice) -> tuple[str, str]:
        """What stands around the text in a choice's chunks: most say nothing else, and only it is encoded for each."""
        before, _, behind = self._chunk(choice, Delta(_NO_EVENT, _MARK), opens=False).rpartition(json.dumps(_MARK))
        return self._around.setdefault(choice.index, (before, behind))

    def usage_chunk(self, choices: Sequence[Choice], prompts: int) -> bytes:
        """The last chunk of a stream that was asked to say its counts."""
        return f"data: {_json({**self._chunk_head, 'choices': [], 'usage': usage(choices, prompts)})}\n\n".encode()

    def whole(self, choices: Sequence[Choice], deltas: Sequence[Sequence[Delta]], prompts: int) -> bytes:
        """A reply in one object."""
        parts = []
        for choice, each in zip(choices, deltas, strict=True):
            entries = tuple(entry for delta in each for entry in delta.logprobs)
            part = {
                "index": choice.index,
                **self.complete("".join(delta.text for delta in each)),
                "logprobs": self.logprobs(choice, entries) if self._with_logprobs else None,
                "finish_reason": each[-1].ending,
            }
            if self._speculation:
                part["speculation"] = [json.loads(to_json(delta.event)) for delta in each]
            parts.append(part)
        head = {**self._head, "object": self.whole_kind}
        return _json({**head, "choices": parts, "usage": usage(choices, prompts)}).encode()

    opens = False
    """Whether a stream begins with a chunk of its own."""

    @abstractmethod
    def part(self, text: str, *, first: bool) -> dict[str, Any]:
        """Text of a chunk."""

    @abstractmethod
    def complete(self, text: str) -> dict[str, Any]:
        """Text of a whole reply."""

    @abstractmethod
    def logprobs(self, choice: Choice, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Log-probabilities of some tokens of a choice."""


class ChatFormat(Format):
    """/v1/chat/completions."""

    chunk_kind, whole_kind, opens = "chat.completion.chunk", "chat.completion", True

    def part(self, text: str, *, first: bool) -> dict[str, Any]:
        """The first chunk says who speaks."""
        if first:
            return {"delta": {"role": "assistant", "content": ""}}
        return {"delta": {"content": text} if text else {}}

    def complete(self, text: str) -> dict[str, Any]:
        """One message."""
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def logprobs(self, choice: Choice, entries: Sequence[TokenLogprob]) -> dict[str, Any]:  # noqa: ARG002
        """One object for each token."""
        return {
            "content": [
                {**_token(entry.text, entry.logprob), "top_logprobs": [_token(*other) for other in entry.top]}
                for entry in entries
            ],
            "refusal": None,
        }


class CompletionFormat(Format):
    """/v1/completions."""

    chunk_kind, whole_kind = "text_completion", "text_completion"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._offsets: dict[int, int] = {}
        """Characters of each choice so far."""

    def part(self, text: str, *, first: bool) -> dict[str, Any]:  # noqa: ARG002
        """The text alone."""
        return {"text": text}

    def complete(self, text: str) -> dict[str, Any]:
        """The text alone."""
        return {"text": text}

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
            "top_logprobs": [dict(reversed(entry.top)) for entry in entries],
            "text_offset": offsets,
        }


def usage(choices: Sequence[Choice], prompts: int) -> dict[str, Any]:
    """Counts of a whole reply; each prompt counts once, however many choices it has."""
    each = len(choices) // prompts
    read = sum(choice.prompt_tokens for choice in choices[::each])
    reused = sum(choice.reused_tokens for choice in choices[::each])
    written = sum(choice.tokens for choice in choices)
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": reused},
    }


def _token(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
