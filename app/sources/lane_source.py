"""A lane of an engine as a source of the app."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from specchat.app.sources.source import Source
from specchat.engine import Comparison, Event, Finished, Outbox, Record, Request
from specchat.engine.tools.compare import Lanes, submit_probe, top2_gap


class RunningLanes(Lanes, Protocol):
    """Lanes that are started, drained and closed together, such as `LaneEngine`."""

    def start(self) -> None:
        """Begin to load."""

    def cancel(self, request_id: str) -> None:
        """End a request of any lane; unknown ids are ignored."""

    def drain(self) -> list[Event]:
        """Events of the whole engine since the last call."""

    def close(self) -> None:
        """End every lane."""


class TimedSource(Source, Protocol):
    """A source that can measure how close the target's choice was at the first difference between two texts."""

    gap: float | None
    """Result of `ask_gap`, in logits; None until it is known."""
    asking: bool
    """Whether the result is still to come."""

    def ask_gap(self, comparison: Comparison) -> None:
        """Run the target once more, without drafts, for its choice at the first difference."""


class LaneSource(Source):
    """Lane of a live engine. The first lane starts and closes all lanes, and returns the records of the whole engine.

    Lanes are compared with each other, so a lane cannot be paused, and a reply cannot be changed.
    """

    def __init__(self, engine: RunningLanes, lane: int) -> None:
        self.gap: float | None = None
        self.asking = False
        self._engine = engine
        self._lane = lane
        self._outbox = Outbox()
        self._request: Request | None = None
        self._probe = ""
        self._answer: list[Record] = []

    def start(self) -> None:
        """Start the engine's thread."""
        if self._lane == 0:
            self._engine.start()

    def submit(self, request: Request) -> None:
        """Generate a reply in the lane."""
        self._request, self.gap = request, None
        self._engine.submit(request, self._outbox, self._lane)

    def examine(self, request: Request, continuation: Sequence[int]) -> None:
        """Compute the distribution after these tokens in the lane."""
        self._engine.submit(replace(request, reply_ids=tuple(continuation)), self._outbox, self._lane)

    def cancel(self, request_id: str) -> None:
        """End a reply within one round."""
        self._engine.cancel(request_id)

    def ask_gap(self, comparison: Comparison) -> None:
        """Generate the token after the common prefix of both texts, with the target's top two."""
        if self._request is not None:
            self._answer, self.asking = [], True
            self._probe = submit_probe(self._engine, self._request, comparison, self._outbox)

    def drain(self) -> list[Record]:
        """The lane's records since the last call; the first lane adds those of the whole engine."""
        said: list[Record] = [*(self._engine.drain() if self._lane == 0 else ())]
        for record in self._outbox.drain():
            if getattr(record, "request_id", None) == self._probe:
                self._take_answer(record)
            else:
                said.append(record)
        return said

    def close(self) -> None:
        """Close the engine; it ends within one round."""
        if self._lane == 0:
            self._engine.close()

    def _take_answer(self, record: Record) -> None:
        self._answer.append(record)
        if isinstance(record, Finished):
            self.asking = False
            self.gap = top2_gap([event for event in self._answer if not isinstance(event, Request)])
