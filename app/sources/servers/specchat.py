"""A `specchat serve`: its records come with the chunks of its streams, timed by its own clock."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from specchat.app.sources.servers.listing import Listing
from specchat.app.sources.servers.protocol import path, turns
from specchat.app.sources.servers.server import Ask, Call, Clock
from specchat.engine import Admitted, EngineError, Event, Finished, Notice, Prefilled, Ready, Request, Round, from_json

MOST_TOP = 20
"""Entries of a top-k list that the protocol allows."""


class Specchat:
    """A server of ours.

    Args:
        ready: what its engine said when it was loaded.
    """

    def __init__(self, ready: Ready) -> None:
        self.ready = ready

    @classmethod
    def found(cls, listing: Listing) -> Specchat | None:
        """The server, if it lists its model with a `Ready`."""
        try:
            record = from_json(json.dumps(listing.entry(listing.model())["speculation"]))
        except (ValueError, LookupError):
            return None
        return cls(record) if isinstance(record, Ready) else None

    def call(self, request: Request, ask: Ask) -> Call:  # noqa: ARG002
        """The request with all that an engine of ours takes."""
        s = request.sampling
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
    """Takes the records out of chunks, and gives them the request's own id."""

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self.finished: Finished | None = None

    def read(self, values: dict[str, Any]) -> Iterator[Event]:
        """The record of a chunk, if it has one."""
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
        """Nothing is held back."""
        yield from ()
