"""A `specchat serve` somewhere else as the engine: its records come with the chunks of its streams."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import httpx2

from specchat.engine import (
    Admitted,
    Counted,
    Died,
    EngineError,
    Event,
    Finished,
    FinishReason,
    Loading,
    Message,
    Notice,
    Outbox,
    Prefilled,
    Ready,
    Request,
    Round,
    from_json,
    left_out,
    without,
)

CONNECT_S = 10.0
SILENCE_S = 600.0
"""Seconds without a byte of a reply until it counts as lost: a request may wait for a slot."""
_NO_ANSWER = (httpx2.HTTPError, ValueError, LookupError, TypeError, RuntimeError)
"""What comes of a server that cannot count."""
MOST_TOP = 20
"""Entries of a top-k list that the protocol allows."""


class AttachedEngine:
    """The engine behind a `specchat serve`. Its times are those of the server's clock.

    Commands go in as to `specchat.engine.Engine`, and events come out of outboxes; no method waits for the server.

    Args:
        url: of the server, with or without /v1.
        key: its key, if it has one.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = _base(url)
        self.outbox = Outbox()
        headers = {"authorization": f"Bearer {key}"} if key else {}
        timeout = httpx2.Timeout(SILENCE_S, connect=CONNECT_S)
        limits = httpx2.Limits(max_connections=None)
        self._http = httpx2.Client(base_url=self.url, headers=headers, timeout=timeout, limits=limits)
        self._streams: dict[str, _Stream] = {}
        self._lock = threading.Lock()
        self._paused = False
        self._steps = 0
        self._context = 0
        """Tokens of prompt and reply together, once the server has said it."""
        self._held: list[Event] = []
        """What has come and is not given yet: the rounds of a pause."""

    def start(self) -> None:
        """Ask the server who it is."""
        threading.Thread(target=self._meet, name="attach", daemon=True).start()

    def submit(self, request: Request, outbox: Outbox | None = None) -> None:
        """Ask for a reply.

        Raises:
            EngineError: the protocol cannot carry the request, or one of its id has not ended.
        """
        request.check_prompt()
        _body(request)  # says what the protocol cannot carry
        with self._lock:
            if request.request_id in self._streams:
                raise EngineError(f"request {request.request_id!r} has not ended yet: give each request its own id")
            stream = _Stream(request.request_id, outbox or self.outbox)
            self._streams[request.request_id] = stream
        path = "/v1/chat/completions" if request.messages else "/v1/completions"
        threading.Thread(target=self._read, args=(stream, path, request), name="reply", daemon=True).start()

    def examine(self, request: Request, continuation: Sequence[int]) -> None:  # noqa: ARG002
        """Refuse: the protocol has no words for it.

        Raises:
            EngineError: always.
        """
        raise EngineError(
            f"{self.url} cannot be asked what comes behind these tokens: examine with a model of your own"
        )

    def cancel(self, request_id: str) -> None:
        """Leave, which ends the reply at the server within a round. Unknown ids are ignored."""
        with self._lock:
            stream = self._streams.get(request_id)
        if stream is not None:
            stream.leave()

    def adjust(self, request_id: str, drafter: str, gamma: int | None) -> None:  # noqa: ARG002
        """Refuse: a reply at a server drafts as it was asked to.

        Raises:
            EngineError: always.
        """
        raise EngineError("a reply at a server drafts as it began: the change counts from the next reply on")

    def set_detail(self, request_id: str, detail: int) -> None:
        """Does nothing: a reply at a server has the detail it was asked for."""

    def count(self, messages: tuple[Message, ...], key: str = "") -> None:
        """Ask how many tokens these messages take as a prompt; nothing is said if the server cannot tell."""
        threading.Thread(target=self._count, args=(messages, key), name="count", daemon=True).start()

    def pause(self) -> None:
        """Hold back what comes; the server goes on."""
        self._paused, self._steps = True, 0

    def step(self) -> None:
        """While paused: give one more round."""
        self._steps += self._paused

    def resume(self) -> None:
        """Give what was held back, and what comes."""
        self._paused = False

    def drain(self) -> list[Event]:
        """What has come since the last call; while paused, what was stepped to."""
        self._held += self.outbox.drain()
        count = len(self._held)
        if self._paused:
            rounds = [place for place, event in enumerate(self._held, start=1) if isinstance(event, Round)]
            count = rounds[min(self._steps, len(rounds)) - 1] if self._steps and rounds else 0
            self._steps = 0
        given, self._held = self._held[:count], self._held[count:]
        return given

    def close(self, timeout: float | None = None) -> None:  # noqa: ARG002
        """End all replies."""
        for stream in list(self._streams.values()):
            stream.leave()
        self._http.close()

    def _meet(self) -> None:
        self.outbox.put(Loading("attach", f"asking {self.url}", None, 0.0))
        try:
            ready = self._ready()
        except EngineError as error:
            self.outbox.put(Died(str(error), 0.0))
        else:
            self._context = ready.context
            self.outbox.put(ready)

    def _ready(self) -> Ready:
        try:
            reply = self._http.get("/v1/models", timeout=CONNECT_S)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise EngineError(f"{self.url} cannot be reached ({_words(error)}): start specchat serve there") from None
        if reply.status_code != 200:
            raise EngineError(f"{self.url} refuses: {_complaint(reply.content, reply.status_code)}")
        try:
            record = from_json(json.dumps(reply.json()["data"][0]["speculation"]))
        except (ValueError, LookupError, TypeError):
            record = None
        if not isinstance(record, Ready):
            raise EngineError(f"{self.url} does not say what becomes of drafts: attach to a specchat serve")
        return record

    def _count(self, messages: tuple[Message, ...], key: str) -> None:
        with suppress(*_NO_ANSWER):
            self.outbox.put(Counted(self._length(messages), 0.0, key))

    def _length(self, messages: tuple[Message, ...]) -> int:
        reply = self._http.post("/tokenize", json={"messages": _turns(messages)}, timeout=CONNECT_S)
        return int(reply.raise_for_status().json()["count"])

    def _left_out(self, request: Request) -> range:
        """What the server is not told, as it would not fit; it refuses by itself what cannot be counted."""
        if self._context:
            with suppress(*_NO_ANSWER):
                return left_out(request, self._length, 0, self._context)
        return range(0)

    def _read(self, stream: _Stream, path: str, request: Request) -> None:
        """Read one reply to its end, on a thread of its own."""
        gone = self._left_out(request)
        body = _body(replace(request, messages=without(request.messages, gone)))
        at = 0.0
        finished: Finished | None = None
        message = f"{self.url} ended the reply before it was complete: ask again"
        try:
            with self._http.stream("POST", path, json=body) as reply:
                stream.opened(reply)
                if reply.status_code != 200:
                    message = _complaint(reply.read(), reply.status_code)
                else:
                    for event in _events(reply):
                        at = event.at
                        mine = replace(event, request_id=stream.request_id)
                        if isinstance(mine, Finished):
                            finished = mine
                        else:
                            if isinstance(mine, Admitted):
                                mine = replace(mine, left_out=tuple(gone))
                            stream.outbox.put(mine)
        except EngineError as error:
            message = str(error)
        except (httpx2.HTTPError, httpx2.StreamError, OSError, RuntimeError) as error:
            message = f"{self.url} was lost in mid-reply ({_words(error)}): ask again"
        with self._lock:
            self._streams.pop(stream.request_id, None)
        if finished is None:
            reason = FinishReason.CANCELLED if stream.left else FinishReason.ERROR
            finished = Finished(stream.request_id, reason, "", "" if stream.left else message, at)
        stream.outbox.put(finished)


class _Stream:
    """A reply that is being read."""

    def __init__(self, request_id: str, outbox: Outbox) -> None:
        self.request_id = request_id
        self.outbox = outbox
        self.left = False
        self._reply: httpx2.Response | None = None

    def opened(self, reply: httpx2.Response) -> None:
        """The server has begun to answer."""
        self._reply = reply
        if self.left:
            self.leave()

    def leave(self) -> None:
        """Read no more."""
        self.left = True
        if self._reply is not None:
            socket = self._reply.extensions.get("network_stream")
            raw = socket.get_extra_info("socket") if socket is not None else None
            if raw is not None:
                with suppress(OSError):
                    raw.shutdown(2)  # wakes the thread that waits for more


OfRequest = Admitted | Prefilled | Round | Notice | Finished


def _events(reply: httpx2.Response) -> Iterator[OfRequest]:
    """The records of a stream.

    Raises:
        EngineError: the server reports an error, or something else came.
    """
    for line in reply.iter_lines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        try:
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise EngineError(_complaint(line[6:].encode(), reply.status_code))
            record = from_json(json.dumps(chunk["speculation"])) if "speculation" in chunk else None
        except (ValueError, TypeError, RecursionError):
            raise EngineError("the server sent something that is no record: it may be of another version") from None
        if isinstance(record, Admitted | Prefilled | Round | Notice | Finished):
            yield record


def _body(request: Request) -> dict[str, Any]:
    """The request in the words of the protocol.

    Raises:
        EngineError: it has none for a part of it.
    """
    s = request.sampling
    if s.lenience != 1:
        raise EngineError("a server accepts drafts as it was started to: leave out --lenience")
    if request.reply_ids or request.reply_text:
        raise EngineError("a server cannot be given the beginning of a reply: go on with a model of your own")
    body: dict[str, Any] = {
        "stream": True,
        "speculation": True,
        "max_tokens": request.max_tokens,
        "drafter": request.drafter,
        "gamma": "auto" if request.gamma is None else request.gamma,
        "temperature": s.temperature,
        "top_k": s.top_k,
        "top_p": s.top_p,
        "min_p": s.min_p,
        "repetition_penalty": s.repetition_penalty,
        "presence_penalty": s.presence_penalty,
        "frequency_penalty": s.frequency_penalty,
        "logit_bias": {str(token): bias for token, bias in s.logit_bias},
        "seed": s.seed,
        "stop": list(request.stop),
    }
    top = min(request.detail, MOST_TOP)
    if request.messages:
        body |= {"messages": _turns(request.messages), "thinking": request.thinking}
        body |= {"logprobs": True, "top_logprobs": top} if top else {}
    else:
        body["prompt"] = request.prompt if request.prompt is not None else list(request.prompt_ids)
        body |= {"logprobs": top} if top else {}
    return body


def _turns(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": turn.role, "content": turn.content} for turn in messages]


def _base(url: str) -> str:
    """The address without a path.

    Raises:
        EngineError: it is none.
    """
    whole = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(whole)
        known = (parts.scheme in ("http", "https") and parts.hostname and parts.port is None) or parts.port
    except ValueError:
        known = False
    if not known or parts.path.rstrip("/") not in ("", "/v1"):
        raise EngineError(f"{url} is not the address of a server: give one such as http://127.0.0.1:8000")
    return f"{parts.scheme}://{parts.netloc}"


def _complaint(body: bytes, status: int) -> str:
    """What the server says is wrong."""
    with suppress(ValueError, LookupError, TypeError):
        return str(json.loads(body)["error"]["message"])
    return f"the server answers with status {status}"


def _words(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
