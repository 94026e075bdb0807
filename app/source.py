"""Where the app's rounds come from: the engine, or a recorded trace (`app.player`). The app cannot tell which."""

from __future__ import annotations

from typing import Protocol

from engine import Engine, Record, Request


class Source(Protocol):
    """Commands go in, records come out. No method waits for a model."""

    def start(self) -> None:
        """Begin; `drain` gives `Loading` records from here on, then `Ready`."""

    def submit(self, request: Request) -> None:
        """Ask for a reply.

        Raises:
            EngineError: the request cannot be served.
        """

    def cancel(self, request_id: str) -> None:
        """End a reply within one round."""

    def adjust(self, request_id: str, drafter: str, gamma: int | None) -> None:
        """Draft otherwise for a reply from its next round on.

        Raises:
            EngineError: there is no such drafter, or γ is out of range.
        """

    def set_detail(self, request_id: str, detail: int) -> None:
        """From the next round of a request on, give the top-k of this size for each judged token; 0 gives none."""

    def pause(self) -> None:
        """Nothing more happens, from the end of the round under way on."""

    def step(self) -> None:
        """While paused: one more round of the batch."""

    def resume(self) -> None:
        """Go on."""

    def drain(self) -> list[Record]:
        """Everything that has happened since the last call. A `Request` comes from a trace only."""

    def close(self) -> None:
        """End everything."""


class Unsteered:
    """The part of a source that is left alone while it answers: whoever compares does not interfere."""

    def adjust(self, request_id: str, drafter: str, gamma: int | None) -> None:
        """A reply drafts as it was asked to."""

    def set_detail(self, request_id: str, detail: int) -> None:
        """Nobody looks closer: that takes time."""

    def pause(self) -> None:
        """Nothing is paused."""

    def step(self) -> None:
        """Nor stepped."""

    def resume(self) -> None:
        """Nor resumed."""


class EngineSource:
    """A live engine as a source."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def start(self) -> None:
        """Start the engine's thread."""
        self._engine.start()

    def submit(self, request: Request) -> None:
        """Ask the engine for a reply."""
        self._engine.submit(request)

    def cancel(self, request_id: str) -> None:
        """End a reply within one round."""
        self._engine.cancel(request_id)

    def adjust(self, request_id: str, drafter: str, gamma: int | None) -> None:
        """Draft otherwise for a reply from its next round on."""
        self._engine.adjust(request_id, drafter, gamma)

    def set_detail(self, request_id: str, detail: int) -> None:
        """Ask the engine for more, or less, about a reply."""
        self._engine.set_detail(request_id, detail)

    def pause(self) -> None:
        """Stop between two rounds."""
        self._engine.pause()

    def step(self) -> None:
        """One round."""
        self._engine.step()

    def resume(self) -> None:
        """Go on."""
        self._engine.resume()

    def drain(self) -> list[Record]:
        """Everything the engine has said since the last call."""
        return list(self._engine.outbox.drain())

    def close(self) -> None:
        """Close the engine; it ends within one round."""
        self._engine.close()
