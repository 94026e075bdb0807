"""Any server of the OpenAI protocol: text as it comes, and counts of tokens where it has them.

Source: the API reference of OpenAI, "Chat Completions", `stream_options.include_usage`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from specchat.app.sources.servers.listing import Listing, observed_ready
from specchat.app.sources.servers.protocol import path, read_chunk, standard_body
from specchat.app.sources.servers.reply_stream import ReplyStream
from specchat.app.sources.servers.server import Ask, Call, Clock
from specchat.engine import Event, Finished, Ready, Request

NAME = "OpenAI protocol"
Counts = Callable[[Mapping[str, Any]], tuple[int | None, int | None]]
"""Drafted and accepted tokens that a last chunk tells of."""


def no_counts(values: Mapping[str, Any]) -> tuple[None, None]:  # noqa: ARG001
    """The protocol itself has none."""
    return None, None


class Plain:
    """A server of no known kind.

    Args:
        ready: its model.
    """

    def __init__(self, ready: Ready) -> None:
        self.ready = ready

    @classmethod
    def found(cls, listing: Listing) -> Plain:
        """Every server is one."""
        return cls(observed_ready(NAME, listing.model()))

    def call(self, request: Request, ask: Ask) -> Call:  # noqa: ARG002
        """The request in what the protocol itself has."""
        return Call(path(request), standard_body(request, self.ready.target))

    def reader(self, request_id: str, clock: Clock) -> PlainReader:
        """A reader of text."""
        return PlainReader(ReplyStream(request_id, clock))


class PlainReader:
    """Makes one token of unknown fate of each chunk with text, and `Totals` of the counts at the end.

    Args:
        stream: of the reply.
        counts: finds the counts of drafts.
    """

    def __init__(self, stream: ReplyStream, counts: Counts = no_counts) -> None:
        self._stream = stream
        self._counts = counts

    @property
    def finished(self) -> Finished | None:
        """The end, once the server has told it."""
        return self._stream.finished

    def read(self, values: dict[str, Any]) -> Iterator[Event]:
        """The tokens of this chunk, or what the server says at the end."""
        chunk = read_chunk(values)
        text = self._stream.text_of(chunk)
        if text:
            yield from self._stream.admit(chunk.prompt_tokens)
            yield from self._stream.unknown(text, chunk.pieces, None)
        self._stream.finish(chunk.reason)
        if chunk.tokens is not None and not text:
            drafted, accepted = self._counts(values)
            passes = None if accepted is None else chunk.tokens - accepted  # each gives one token that was not drafted
            yield self._stream.totals(chunk, passes=passes, drafted=drafted, accepted=accepted)

    def close(self) -> Iterator[Event]:
        """Nothing is held back."""
        yield from ()
