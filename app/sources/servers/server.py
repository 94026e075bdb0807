"""Interface of a server adapter, and the parts that adapters share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from specchat.app.sources.observed import OBSERVED
from specchat.app.sources.servers.protocol import Clock, ReplyStream, path, standard_body
from specchat.engine import EngineError, Event, Finished, Ready, Request

_SHOWN = 8
"""Models named in an error message."""
Ask = Callable[[str, Mapping[str, Any] | None], Any]
"""GET of a path, or POST of a body to it. Returns the JSON of an answer with status 200, otherwise None. Raises
EngineError if the server refuses the key."""


class Call(NamedTuple):
    """A streamed request: path and body."""

    path: str
    body: dict[str, Any]


class Reader(Protocol):
    """Makes records of the chunks of one reply."""

    @property
    def finished(self) -> Finished | None:
        """The end of the reply; None until the server has reported it."""

    def read(self, values: dict[str, Any]) -> Iterator[Event]:
        """The records of one more chunk.

        Raises:
            EngineError: it is not a chunk of this server.
        """

    def close(self) -> Iterator[Event]:
        """Records that were held back, at the end of the stream or where it broke off."""


class Server(Protocol):
    """A server of one kind."""

    @property
    def ready(self) -> Ready:
        """The model under the server's name, and its properties."""

    def call(self, request: Request, ask: Ask) -> Call:
        """The request in the format of this server, which may send others first.

        Raises:
            EngineError: the server does not support a part of it.
        """

    def reader(self, request_id: str, clock: Clock) -> Reader:
        """A reader for the reply to a request."""


class ObservedReader:
    """Base of readers that make records with a `ReplyStream`."""

    def __init__(self, stream: ReplyStream) -> None:
        self._stream = stream

    @property
    def finished(self) -> Finished | None:
        """The end of the reply; None until the server has reported it."""
        return self._stream.finished

    def read(self, values: dict[str, Any]) -> Iterator[Event]:
        """The records of one more chunk."""
        raise NotImplementedError

    def close(self) -> Iterator[Event]:
        """No records are held back."""
        yield from ()


def _unchanged(request: Request, body: dict[str, Any], ask: Ask) -> Call:  # noqa: ARG001
    return Call(path(request), body)


@dataclass(frozen=True, slots=True)
class ObservedServer:
    """A server of another program, whose replies become records by what it reports.

    Attributes:
        ready: its model.
        model: the server's name of the model.
        new_reader: makes a reader of a reply.
        extensions: the server's names of top_k, min_p and repetition_penalty, if it supports them.
        prepare: completes the standard body of a request.
    """

    ready: Ready
    model: str
    new_reader: Callable[[ReplyStream], Reader]
    extensions: Mapping[str, str] | None = None
    prepare: Callable[[Request, dict[str, Any], Ask], Call] = _unchanged

    def call(self, request: Request, ask: Ask) -> Call:
        """The request in the format of this server."""
        return self.prepare(request, standard_body(request, self.model, self.extensions), ask)

    def reader(self, request_id: str, clock: Clock) -> Reader:
        """A reader for the reply to a request."""
        return self.new_reader(ReplyStream(request_id, clock))


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
            raise EngineError(f"{self.url} has no model {self.wanted}: it has {', '.join(names[:_SHOWN])}{more}")
        return self.wanted

    def entry(self, name: str) -> Mapping[str, Any]:
        """The entry of a model."""
        return next(model for model in self.models if model["id"] == name)


def observed_ready(server: str, model: str, *, context: int | None = None, slots: int | None = None) -> Ready:
    """A `Ready` for a model at another server."""
    return Ready(
        target=model,
        draft=None,
        drafters=(OBSERVED,),
        device="",
        device_name="",
        dtype="",
        context=context or 0,
        slots=slots or 0,
        weight_bytes=0,
        cache_bytes=0,
        at=0.0,
        observed=server,
    )
