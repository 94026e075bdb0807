"""The OpenAI protocol of a client: interface of an adapter, requests, and the records that are made of a stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from specchat import engine
from specchat.app.sources.observed import OBSERVED, Unmarked, observed_round
from specchat.app.sources.servers.messages import COMPLETE, CallParts, offered, turns

REASONS = {reason.value: reason for reason in engine.FinishReason if reason not in COMPLETE}
"""Other reasons, such as stop, mean a complete reply."""
THINKING = engine.Thinking("<think>", "</think>", begun=False)
"""Markers put around thinking that a server reports separately; some models write them themselves."""
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
NO_CHUNK = "the server sent something that is not a chunk of a reply: it may be of another version"
_LARGEST = 1 << 40
"""Larger counts are invalid."""
_SHOWN = 8
"""Models named in an error message."""
Clock = Callable[[], float]
"""Seconds since the app attached."""
Ask = Callable[[str, Mapping[str, Any] | None], Any]
"""GET of a path, or POST of a body to it. Returns the JSON of an answer with status 200, otherwise None. Raises
EngineError if the server refuses the key."""


class Call(NamedTuple):
    """A streamed request: path and body."""

    path: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Server:
    """The adapter of one server."""

    ready: engine.Ready
    """The model under the server's name, and its properties."""
    call: Callable[[engine.Request, Ask], Call]
    """Returns the request in the format of this server, which may send others first; raises EngineError if the server
    does not support a part of it."""
    reader: Callable[[str, Clock], Reader]
    """Makes a reader for the reply to a request."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The answer to `GET /v1/models`, and a function for further requests."""

    url: str
    models: Sequence[Mapping[str, Any]]
    wanted: str | None
    """The requested model; None for the first."""
    ask: Ask

    def owned_by(self, owner: str) -> bool:
        """Whether the server's models have this owner."""
        return self.models[0].get("owned_by") == owner

    def model(self, usual: str | None = None) -> str:
        """The name of the model to use: the requested one, else the usual one, else the first.

        Raises:
            EngineError: there is no such model.
        """
        names = [str(model["id"]) for model in self.models]
        if self.wanted is None:
            return usual if usual in names else names[0]
        if self.wanted not in names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            raise engine.EngineError(f"{self.url} has no model {self.wanted}: it has {', '.join(names[:_SHOWN])}{more}")
        return self.wanted

    def entry(self, name: str) -> Mapping[str, Any]:
        """The entry of a model."""
        return next(model for model in self.models if model["id"] == name)


def observed_ready(server: str, model: str, *, context: int | None = None, slots: int | None = None) -> engine.Ready:
    """A `Ready` for a model at another server, which itself refuses tools that it cannot offer."""
    sizes = context or 0, slots or 0, 0, 0, 0.0
    return engine.Ready(model, None, (OBSERVED,), "", "", "", *sizes, observed=server, tools=True)


def check(request: engine.Request) -> None:
    """Check that a server can serve the request.

    Raises:
        EngineError: it cannot.
    """
    if request.sampling.lenience != 1:
        raise engine.EngineError("a server accepts drafts as it was started to: leave out --lenience")
    if request.constraint and request.constraint.kind is not engine.ConstraintKind.SCHEMA:
        raise engine.EngineError(
            "a server takes no regular expression, grammar or choices: use --schema or --json-object, or a model on "
            "this machine"
        )
    if request.reply_ids or request.reply_text:
        raise engine.EngineError(
            "a server cannot be given the beginning of a reply: continue it with a model on this machine"
        )


def path(request: engine.Request) -> str:
    """The path for a request: chat or completion."""
    return CHAT if request.messages else COMPLETION


def response_format(request: engine.Request) -> dict[str, Any]:
    """The field for the constraint of a request; empty without one."""
    if request.constraint is None:
        return {}
    schema = {"name": "reply", "strict": True, "schema": json.loads(request.constraint.text)}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def standard_body(request: engine.Request, model: str, penalty: str | None, *, dry: bool = False) -> dict[str, Any]:
    """The body of a streamed request, with the fields of OpenAI's API; settings that are off are left out.

    Args:
        request: the request.
        model: the server's name of the model.
        penalty: the server's name of repetition_penalty, if it supports that, top_k and min_p.
        dry: whether it supports DRY and XTC.

    Raises:
        EngineError: the server does not support a setting.
    """
    s = request.sampling
    body: dict[str, Any] = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    body |= {"max_tokens": request.max_tokens, "temperature": s.temperature, "top_p": s.top_p}
    if request.messages:
        body["messages"] = turns(request.messages)
    else:
        body["prompt"] = request.prompt if request.prompt is not None else list(request.prompt_ids)
    body |= {"seed": s.seed} if s.seed is not None else {}
    body |= {"stop": list(request.stop)} if request.stop else {}
    body |= response_format(request) | offered(request.tools)
    body |= {"logit_bias": {str(token): bias for token, bias in s.logit_bias}} if s.logit_bias else {}
    penalties = {"presence_penalty": s.presence_penalty, "frequency_penalty": s.frequency_penalty}
    body |= {name: value for name, value in penalties.items() if value}
    if dry:
        names = (name for name in engine.SAMPLING_NUMBERS if name.startswith(("dry", "xtc")))
        body |= {name: getattr(s, name) for name in ("dry_sequence_breakers", *names)}
    for name, used in (("dry-multiplier", s.dry), ("xtc-probability", s.xtc)) if not dry else ():
        if used:
            raise engine.EngineError(f"this server does not take --{name}: leave it out")
    if penalty is not None:  # sent even if off, as servers have other defaults
        return body | {"top_k": s.top_k, "min_p": s.min_p, penalty: s.repetition_penalty}
    for name, on in (("top-k", s.top_k), ("min-p", s.min_p), ("repetition-penalty", s.repetition_penalty != 1)):
        if on:
            raise engine.EngineError(f"this server does not take --{name}: leave it out")
    return body


@dataclass(frozen=True, slots=True)
class Chunk:
    """The common fields of a chunk. Counts are of the whole reply so far; None if not reported."""

    text: str
    """New text of the reply."""
    thought: str
    """New thinking that the server reports separately."""
    pieces: tuple[str, ...]
    """Texts of the new tokens, if requested with `logprobs`."""
    reason: engine.FinishReason | None
    """Why the reply ended; None before the end."""
    prompt_tokens: int | None
    tokens: int | None
    last: bool
    """Whether it comes after the text, with the counts of the whole reply."""
    called: bool = False
    """Whether it has parts of calls."""


def count(values: object, *names: str) -> int | None:
    """The first of these fields that is a valid count; None if none is."""
    if not isinstance(values, Mapping):
        return None
    for name in names:
        value = values.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST:
            return value
    return None


_THOUGHTS = ("reasoning_content", "reasoning", "thinking", "thought", "reasoning_details", "thinking_blocks")
"""Names of a message's thinking, of which some servers send several with the same text."""
_PARTS = ("text", "thinking", "reasoning", "summary", "content", "refusal")
"""Names of a part's text."""


def texts_of(content: object) -> tuple[str, str]:
    """Text and thinking of a message's content, which is a text or, as Mistral's, a list of parts.

    Raises:
        TypeError: it is something else.
    """
    texts = {True: "", False: ""}
    for part in content if isinstance(content, list) else [content]:
        kind = str(part.get("type")) if isinstance(part, Mapping) else ""
        texts[kind.startswith(("think", "reason"))] += _flat(part)
    return texts[False], texts[True]


def _flat(value: object) -> str:
    """The text of a part, or of a list of them."""
    if isinstance(value, list):
        return "".join(map(_flat, value))
    if isinstance(value, Mapping):
        return _flat(next((value[name] for name in _PARTS if value.get(name)), None))
    if value is not None and not isinstance(value, str):
        raise TypeError
    return value or ""


class Reader:
    """Makes records of the chunks of one reply: a token of unknown fate of each, and `Totals` of the counts at the end.

    Adapters override `parse` and `counts`, or `read`, for what their server reports.

    Args:
        request_id: the request.
        clock: of the records.
    """

    knows_tokens = False
    """Whether every chunk has the number of tokens of the reply so far."""

    def __init__(self, request_id: str, clock: Clock) -> None:
        self.request_id, self.clock = request_id, clock
        self.finished: engine.Finished | None = None
        self.tokens = 0
        """Tokens received."""
        self.prompt_tokens = 0
        self._submitted = clock()
        self._admitted = False
        self._thinking = False
        self._unmarked = Unmarked(THINKING)
        self._calls = CallParts()
        self._rounds = 0
        self._last_at: float | None = None

    def read(self, values: dict[str, Any]) -> Iterator[engine.Event]:
        """The records of one more chunk.

        Raises:
            EngineError: it is not a chunk of this server.
        """
        chunk = self.parse(values)
        text = self.text_of(chunk)
        if text or chunk.called or chunk.prompt_tokens is not None:
            yield from self.admit(chunk.prompt_tokens, count(values.get("meta_info"), "cached_tokens") or 0)
            yield from self.unknown(text, chunk.pieces, chunk.tokens if self.knows_tokens else None)
        self.finish(chunk.reason)
        if chunk.last:
            yield self.counts(values, chunk)

    def close(self) -> Iterator[engine.Event]:
        """Records that were held back, at the end of the stream or where it broke off: none."""
        yield from ()

    def parse(self, values: dict[str, Any]) -> Chunk:
        """The common fields of a chunk of a chat or of a completion; errors as for `read`."""
        try:
            choice = (values.get("choices") or [{}])[0]
            delta = choice.get("delta") or {}
            text, thought = texts_of(delta.get("content") or choice.get("text"))
            thought = next(filter(None, (_flat(delta.get(name)) for name in _THOUGHTS)), thought)
            listed = (choice.get("logprobs") or {}).get("content") or ()
            pieces = tuple(each["token"] for each in listed)
            reason = choice.get("finish_reason")
            called = self._calls.add(delta.get("tool_calls") or ())
            usage = values.get("usage")
            if not all(isinstance(each, str) for each in pieces):
                raise TypeError
            ended = None if reason is None else REASONS.get(reason, engine.FinishReason.EOS)
            tokens = count(usage, "completion_tokens")
            last = tokens is not None and not (text or thought or called)
            return Chunk(text, thought, pieces, ended, count(usage, "prompt_tokens"), tokens, last, called)
        except (AttributeError, LookupError, TypeError, ValueError):
            raise engine.EngineError(NO_CHUNK) from None

    def counts(self, values: dict[str, Any], chunk: Chunk) -> engine.Totals:  # noqa: ARG002
        """The counts of the last chunk: none about drafts."""
        return self.totals(chunk)

    def admit(self, prompt_tokens: int | None, reused: int = 0) -> Iterator[engine.Admitted]:
        """An `Admitted` at the first call."""
        if not self._admitted:
            self._admitted, at = True, self.clock()
            self.prompt_tokens = prompt_tokens or 0
            yield engine.Admitted(self.request_id, self.prompt_tokens, reused, at - self._submitted, at)

    def text_of(self, chunk: Chunk) -> str:
        """The text of a chunk, with markers around thinking that the server reports separately."""
        begins = bool(chunk.thought) and not self._thinking
        ends = (self._thinking or begins) and bool(chunk.text)
        self._thinking = (self._thinking or begins) and not ends
        before, after = f"{THINKING.opening}\n" if begins else "", f"\n{THINKING.closing}\n\n" if ends else ""
        return before + chunk.thought + after + chunk.text

    def round(self, step: engine.Step | None, pieces: Sequence[str]) -> engine.Round:
        """A round that has just arrived; without a step, one token of unknown fate."""
        at = self.clock()
        seconds = 0.0 if self._last_at is None else at - self._last_at
        number, position = self._rounds, self.prompt_tokens + self.tokens
        self._last_at, self._rounds = at, number + 1
        self.tokens += len(pieces)
        return self._unmarked.round(observed_round(self.request_id, number, position, step, pieces, at, seconds))

    def unknown(self, text: str, pieces: Sequence[str], tokens: int | None) -> Iterator[engine.Round]:
        """Tokens of unknown fate, one round each.

        Args:
            text: their text.
            pieces: the text of each; ignored if they do not add up to the text.
            tokens: tokens of the reply with the new ones; None if the server does not report it while streaming.
        """
        new = len(pieces) or int(bool(text)) if tokens is None else tokens - self.tokens
        new = min(new, engine.MOST_DRAFTED + 1)  # protects against invalid counts
        if "".join(pieces) != text or len(pieces) != new:
            pieces = [text, *[""] * (new - 1)] if text else [""] * new
        for piece in pieces:
            yield self.round(None, (piece,))

    def finish(self, reason: engine.FinishReason | None) -> None:
        """Note the reason why the reply ended, if the chunk has one."""
        if reason is not None:
            message = "the server ended the reply with an error" if reason is engine.FinishReason.ERROR else ""
            self.finished = engine.Finished(self.request_id, reason, "", message, self.clock())

    def ended(self, finished: engine.Finished) -> engine.Finished:
        """The end of the reply, with its calls, and with the text that might have become a mark."""
        return self._unmarked.finished(self._calls.finished(finished))

    def totals(
        self,
        chunk: Chunk,
        *,
        passes: int | None = None,
        drafted: int | None = None,
        accepted: int | None = None,
        steps: tuple[engine.Step, ...] | None = None,
    ) -> engine.Totals:
        """The counts that the server reports at the end; without `passes`, each emitted one token beyond the draft."""
        at, tokens = self.clock(), chunk.tokens
        if passes is None and tokens is not None and accepted is not None:
            passes = tokens - accepted
        return engine.Totals(self.request_id, at, chunk.prompt_tokens, tokens, passes, drafted, accepted, steps)
