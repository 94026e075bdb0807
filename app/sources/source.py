"""Where the app's records come from: an engine, a lane of one (`lane_source`), or a recorded trace (`player`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specchat.engine import Message, Record, Request


class Source(Protocol):
    """Commands go in, records come out. No method waits for a model. `specchat.engine.Engine` is one."""

    def start(self) -> None:
        """Begin: `drain` returns `Loading` records from here on, then `Ready`."""

    def submit(self, request: Request) -> None:
        """Ask for a reply.

        Raises:
            EngineError: the request cannot be served.
        """

    def examine(self, request: Request, continuation: Sequence[int]) -> None:
        """Ask what comes behind these tokens of a reply to the request.

        Raises:
            EngineError: the request cannot be served.
        """

    def cancel(self, request_id: str) -> None:
        """End a reply within one round."""

    def adjust(self, request_id: str, drafter: str, gamma: int | None) -> None:
        """Draft in another way for a reply, from its next round on.

        Raises:
            EngineError: there is no such drafter, or γ is out of range.
        """

    def set_detail(self, request_id: str, detail: int) -> None:
        """Record the top-k of this size for each tested token of a request, from its next round on; 0 records none."""

    def count(self, messages: tuple[Message, ...], key: str = "") -> None:
        """Say with a `Counted` how many tokens these messages take as a prompt, where there is a tokenizer."""

    def pause(self) -> None:
        """Run no further round after the one under way."""

    def step(self) -> None:
        """While paused: run one more round of the batch."""

    def resume(self) -> None:
        """Resume after `pause`."""

    def drain(self) -> Sequence[Record]:
        """Everything that has happened since the last call. A `Request` comes from a trace only."""

    def close(self) -> None:
        """End everything."""
