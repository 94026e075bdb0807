"""One lane of an engine as a source of the app, with the figures of the reply it is at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from app.source import Source, Unsteered
from engine import Comparison, Finished, LaneEngine, LaneTally, Outbox, Record, Request
from engine.compare.figures import top2_gap
from engine.compare.runner import submit_probe


class Lane(Source, Protocol):
    """A source that can be asked how close the target's choice was."""

    gap: float | None
    """The answer to `ask_gap`, in logits; None until it is there."""
    asking: bool
    """Whether that answer is still to come."""

    def ask_gap(self, comparison: Comparison) -> None:
        """Ask the target once more, without drafts, for its choice where two texts part."""


class LaneSource(Unsteered):
    """A lane of a live engine. The first lane starts and closes the engine, and hands on what it says as a whole."""

    def __init__(self, engine: LaneEngine, lane: int) -> None:
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
        said: list[Record] = [*(self._engine.outbox.drain() if self._lane == 0 else ())]
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


class TalliedSource(Unsteered):
    """Any source, with the figures of its present reply kept beside it.

    Args:
        source: the source.
        draft_share: ĉ of the lane, asked when a reply begins.
    """

    def __init__(self, source: Source, draft_share: Callable[[], float]) -> None:
        self.tally = LaneTally()
        self._source = source
        self._draft_share = draft_share
        self._request_id = ""

    def start(self) -> None:
        """Start the source."""
        self._source.start()

    def submit(self, request: Request) -> None:
        """Ask for a reply, whose figures are kept from here on."""
        self._request_id = request.request_id
        self.tally = LaneTally(self._draft_share())
        self._source.submit(request)

    def cancel(self, request_id: str) -> None:
        """End a reply within one round."""
        self._source.cancel(request_id)

    def drain(self) -> list[Record]:
        """What the source has said, counted."""
        records = self._source.drain()
        for record in records:
            if not isinstance(record, Request) and getattr(record, "request_id", None) == self._request_id:
                self.tally.add(record)
        return records

    def close(self) -> None:
        """Close the source."""
        self._source.close()
