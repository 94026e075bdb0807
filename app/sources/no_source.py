"""No engine: what stands in while no model is loaded."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.engine import EngineError, Message, Record, Request

NOTHING = "no model is loaded: /model loads one"


class NoSource:
    """A source that has nothing to say, and refuses every request."""

    def start(self) -> None:
        """Nothing begins."""

    def submit(self, request: Request) -> None:  # noqa: ARG002 as the protocol has it
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

    def cancel(self, request_id: str) -> None:
        """Nothing runs."""

    def adjust(self, request_id: str, drafter: str, gamma: int | None) -> None:
        """Nothing runs."""

    def set_detail(self, request_id: str, detail: int) -> None:
        """Nothing runs."""

    def count(self, messages: tuple[Message, ...], key: str = "") -> None:
        """There is no tokenizer."""

    def pause(self) -> None:
        """Nothing runs."""

    def step(self) -> None:
        """Nothing runs."""

    def resume(self) -> None:
        """Nothing runs."""

    def drain(self) -> Sequence[Record]:
        """Nothing happens."""
        return ()

    def close(self) -> None:
        """Nothing is open."""
