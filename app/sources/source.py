"""Sources of the app's records: an engine, a lane of one (`lane_source`), a server (`attached`), a trace (`player`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specchat.engine import EngineError, Message, Record, Request

NOTHING = "no model is loaded: /model loads one"


class Source(Protocol):
    """Takes commands and returns records. No method waits for a model. `specchat.engine.Engine` is a source.

    A class that inherits from this one ignores the commands that it does not define.
    """

    def start(self) -> None:
        """Begin: `drain` then returns `Loading` records, and `Ready` at the end."""
        return

    def submit(self, request: Request) -> None:
        """Generate a reply.

        Raises:
            EngineError: the request cannot be served.
        """

    def examine(self, request: Request, continuation: Sequence[int]) -> None:
        """Compute the distribution after these tokens of a reply to the request.

        Raises:
            EngineError: the request cannot be served.
        """

    def cancel(self, request_id: str) -> None:  # noqa: ARG002
        """End a reply within one round."""
        return

    def adjust(self, request_id: str, drafter: str, gamma: int | None) -> None:  # noqa: ARG002
        """Change the drafter and γ of a reply, from its next round on.

        Raises:
            EngineError: there is no such drafter, or γ is out of range.
        """
        return

    def set_detail(self, request_id: str, detail: int) -> None:  # noqa: ARG002
        """Record the top-k of this size for each tested token of a request, from its next round on; 0 records none."""
        return

    def count(self, messages: tuple[Message, ...], key: str = "") -> None:  # noqa: ARG002
        """Report with a `Counted` how many tokens these messages take as a prompt, if there is a tokenizer."""
        return

    def pause(self) -> None:
        """Run no further round after the current one."""
        return

    def step(self) -> None:
        """While paused: run one more round of the batch."""
        return

    def resume(self) -> None:
        """Resume after `pause`."""
        return

    def drain(self) -> Sequence[Record]:
        """All records since the last call. Only a trace returns `Request` records."""

    def close(self) -> None:
        """End everything."""
        return


class NoSource(Source):
    """Source while no model is loaded: it refuses every request."""

    def submit(self, request: Request) -> None:  # noqa: ARG002
        """Refuse.

        Raises:
            EngineError: always.
        """
        raise EngineError(NOTHING)

    def examine(self, request: Request, continuation: Sequence[int]) -> None:  # noqa: ARG002
        """Refuse.

        Raises:
            EngineError: always.
        """
        raise EngineError(NOTHING)

    def drain(self) -> Sequence[Record]:
        """No records."""
        return ()
