"""A `specchat serve`: its chunks contain its records, timed by its own clock."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from specchat.app.sources.servers.protocol import Clock, path, turns
from specchat.app.sources.servers.server import Ask, Call, Listing
from specchat.engine import Admitted, EngineError, Event, Finished, Notice, Prefilled, Ready, Request, Round, from_json

_LARGEST_TOP = 20
"""Largest top-k list of the protocol."""


def find_specchat(listing: Listing) -> Specchat | None:
    """The server, if it lists its model with a `Ready`."""
    try:
        record = from_json(json.dumps(listing.entry(listing.model())["speculation"]))
    except (ValueError, LookupError):
        return None
    return Specchat(record) if isinstance(record, Ready) else None


class Specchat:
    """A `specchat serve`.

    Args:
        ready: the `Ready` of its engine.
    """

    def __init__(self, ready: Ready) -> None:
        self.ready = ready

    def call(self, request: Request, ask: Ask) -> Call:  # noqa: ARG002
        """The request with all parameters of an engine."""
        s = request.sampling
        numbers = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty")
        body: dict[str, Any] = {
            "stream": True,
            "speculation": True,
            "max_tokens": request.max_tokens,
            "drafter": request.drafter,
            "gamma": "auto" if request.gamma is None else request.gamma,
            **{name: getattr(s, name) for name in (*numbers, "frequency_penalty", "seed")},
            "logit_bias": {str(token): bias for token, bias in s.logit_bias},
            "stop": list(request.stop),
        }
        top = min(request.detail, _LARGEST_TOP)
        if request.messages:
            body |= {"messages": turns(request.messages), "thinking": request.thinking}
            body |= {"logprobs": True, "top_logprobs": top} if top else {}
        else:
            body["prompt"] = request.prompt if request.prompt is not None else list(request.prompt_ids)
            body |= {"logprobs": top} if top else {}
        return Call(path(request), body)

    def reader(self, request_id: str, clock: Clock) -> RecordReader:  # noqa: ARG002
        """A reader of records."""
        return RecordReader(request_id)


class RecordReader:
    """Extracts the records of chunks, and gives them the client's request id."""

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self.finished: Finished | None = None

    def read(self, values: dict[str, Any]) -> Iterator[Event]:
        """The record of a chunk, if any."""
        if "speculation" not in values:
            return
        try:
            record = from_json(json.dumps(values["speculation"]))
        except (ValueError, TypeError, RecursionError):
            raise EngineError("the server sent something that is no record: it may be of another version") from None
        if isinstance(record, Finished):
            self.finished = replace(record, request_id=self._request_id)
        elif isinstance(record, Admitted | Prefilled | Round | Notice):
            yield replace(record, request_id=self._request_id)

    def close(self) -> Iterator[Event]:
        """No records are held back."""
        yield from ()
