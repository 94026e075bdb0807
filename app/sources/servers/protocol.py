"""The OpenAI protocol from a client's side: requests, and what any chunk of a stream has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specchat.engine import EngineError, FinishReason, Message, Request, Thinking

REASONS = {"length": FinishReason.LENGTH, "cancelled": FinishReason.CANCELLED, "error": FinishReason.ERROR}
"""Others, such as stop, say that the reply is complete."""
THINKING = Thinking("<think>", "</think>", begun=False)
"""What is put around text that a server gives apart from the reply; some models' own text has it."""
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
NO_CHUNK = "the server sent something that is no chunk of a reply: it may be of another version"
MOST = 1 << 40
"""Counts above this are none."""


def check(request: Request) -> None:
    """Refuse what no server takes.

    Raises:
        EngineError: the request has such a part.
    """
    if request.sampling.lenience != 1:
        raise EngineError("a server accepts drafts as it was started to: leave out --lenience")
    if request.reply_ids or request.reply_text:
        raise EngineError("a server cannot be given the beginning of a reply: go on with a model of your own")


def path(request: Request) -> str:
    """Where the protocol has requests of this form."""
    return CHAT if request.messages else COMPLETION


def turns(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Messages as the protocol has them."""
    return [{"role": turn.role, "content": turn.content} for turn in messages]


def standard_body(request: Request, model: str, extensions: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A streamed request in what OpenAI's own API defines; what is off is left out.

    Args:
        request: the request.
        model: as the server names it.
        extensions: the server's names of top_k, min_p and repetition_penalty, where it takes them.

    Raises:
        EngineError: a setting has no name at this server.
    """
    s = request.sampling
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": request.max_tokens,
        "temperature": s.temperature,
        "top_p": s.top_p,
    }
    if request.messages:
        body["messages"] = turns(request.messages)
    else:
        body["prompt"] = request.prompt if request.prompt is not None else list(request.prompt_ids)
    body |= {"seed": s.seed} if s.seed is not None else {}
    body |= {"stop": list(request.stop)} if request.stop else {}
    body |= {"logit_bias": {str(token): bias for token, bias in s.logit_bias}} if s.logit_bias else {}
    penalties = {"presence_penalty": s.presence_penalty, "frequency_penalty": s.frequency_penalty}
    body |= {name: value for name, value in penalties.items() if value}
    names = extensions or {}
    own = (("top_k", s.top_k, 0), ("min_p", s.min_p, 0.0), ("repetition_penalty", s.repetition_penalty, 1.0))
    for name, value, off in own:
        if name in names:
            body[names[name]] = value  # said even where it is off: servers have defaults of their own
        elif value != off:
            raise EngineError(f"this server does not take --{name.replace('_', '-')}: leave it out")
    return body


@dataclass(frozen=True, slots=True)
class Chunk:
    """What a chunk of any server has. Counts are of the whole reply so far; None where they are not said."""

    text: str
    """New text of the reply."""
    thought: str
    """New text that the server gives apart from the reply."""
    pieces: tuple[str, ...]
    """The texts of the new tokens, where they were asked for with `logprobs`."""
    reason: FinishReason | None
    """Why the reply ended, if it has."""
    prompt_tokens: int | None
    tokens: int | None


def read_chunk(values: Mapping[str, Any]) -> Chunk:
    """A chunk of a chat or of a completion.

    Raises:
        EngineError: it is none.
    """
    try:
        choice = (values.get("choices") or [{}])[0]
        delta = choice.get("delta") or {}
        text = delta.get("content") or choice.get("text") or ""
        thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
        listed = (choice.get("logprobs") or {}).get("content") or ()
        pieces = tuple(each["token"] for each in listed)
        reason = choice.get("finish_reason")
        usage = values.get("usage") or {}
        if not all(isinstance(each, str) for each in (text, thought, *pieces)):
            raise TypeError
        ended = None if reason is None else REASONS.get(reason, FinishReason.EOS)
        return Chunk(text, thought, pieces, ended, count(usage, "prompt_tokens"), count(usage, "completion_tokens"))
    except (AttributeError, LookupError, TypeError, ValueError):
        raise EngineError(NO_CHUNK) from None


def count(values: object, *names: str) -> int | None:
    """The first of these counts that is said."""
    if not isinstance(values, Mapping):
        return None
    for name in names:
        value = values.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST:
            return value
    return None
