"""What an adapter of a kind of server is, and what reads one of its streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from specchat.engine import Event, Finished, Ready, Request

Clock = Callable[[], float]
"""Seconds since the app attached."""
Ask = Callable[[str, Mapping[str, Any] | None], Any]
"""GET of a path, or POST of a body to it: the JSON that came with status 200; None for anything else. It raises
EngineError if the server refuses the key."""


class Call(NamedTuple):
    """A streamed request: where it goes, and its body."""

    path: str
    body: dict[str, Any]


class Reader(Protocol):
    """Makes records of one reply's chunks."""

    @property
    def finished(self) -> Finished | None:
        """The end that the server has told; None while there may be more."""

    def read(self, values: dict[str, Any]) -> Iterator[Event]:
        """The records of one more chunk.

        Raises:
            EngineError: it is none of this server's.
        """

    def close(self) -> Iterator[Event]:
        """What was held back, at the end of the stream or where it broke off."""


class Server(Protocol):
    """One kind of server at one address."""

    @property
    def ready(self) -> Ready:
        """The model, as the server names it, and what it says of itself."""

    def call(self, request: Request, ask: Ask) -> Call:
        """The request in the words of this server, which may be asked something first.

        Raises:
            EngineError: it has none for a part of it.
        """

    def reader(self, request_id: str, clock: Clock) -> Reader:
        """What reads the reply to a request."""
