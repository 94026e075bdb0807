"""One lane of an engine as a source of the app."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from specchat.app.sources.source import Source
from specchat.engine import Comparison, Event, Finished, Message, Outbox, Record, Request
from specchat.engine.tools.compare import Lanes, submit_probe, top2_gap


class RunningLanes(Lanes, Protocol):
    """Lanes that are started, drained and closed together; `LaneEngine` is one."""

    def start(self) -> None:
        """Begin to load."""

    def cancel(self, request_id: str) -> None:
        """End a request of any lane; unknown ids are ignored."""

    def drain(self) -> list[Event]:
        """What concerns all lanes since the last call."""

    def close(self) -> None:
        """End every lane."""


class TimedSource(Source, Protocol):
    """A source that can be asked how close the target's choice was where two texts differ."""

    gap: float | None
    """The answer to `ask_gap`, in logits; None until it is there."""
    asking: bool
    """Whether that answer is still to come."""

    def ask_gap(self, comparison: Comparison) -> None:
        """Ask the target once more, without drafts, for its choice where two texts part."""


class LaneSource:
    """A lane of a live engine. The first lane starts and closes all lanes, and gives the records of the whole.

    A lane is compared with another one, so it is neither paused nor changed while it answers.
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
        """Ask the lane for a reply."""
        self._request, self.gap = request, None
        self._engine.submit(request, self._outbox, self._lane)

    def examine(self, request: Request, continuation: Sequence[int]) -> None:
        """Ask the lane what comes behind these tokens of a reply."""
        self._engine.submit(replace(request, reply_ids=tuple(continuation)), self._outbox, self._lane)

    def cancel(self, request_id: str) -> None:
        """End a reply within one round."""
        self._engine.cancel(request_id)

    def ask_gap(self, comparison: Comparison) -> None:
        """One token behind what both texts share, with the target's two likeliest."""
        if self._request is not None:
            self._answer, self.asking = [], True
            self._probe = submit_probe(self._engine, self._request, comparison, self._outbox)

    def drain(self) -> list[Record]:
        """Everything the lane has said since the last call; the first lane adds what concerns the whole engine."""
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

    def adjust(self, request_id: str, drafter: str, gamma: int | None) -> None:
        """Does nothing: a reply drafts as it was asked to."""

    def set_detail(self, request_id: str, detail: int) -> None:
        """Does nothing: recording detail takes time."""

    def count(self, messages: tuple[Message, ...], key: str = "") -> None:
        """Does nothing: both lanes are asked the same."""

    def pause(self) -> None:
        """Does nothing."""

    def step(self) -> None:
        """Does nothing."""

    def resume(self) -> None:
        """Does nothing."""

    def _take_answer(self, record: Record) -> None:
        self._answer.append(record)
        if isinstance(record, Finished):
            self.asking = False
            self.gap = top2_gap([event for event in self._answer if not isinstance(event, Request)])
