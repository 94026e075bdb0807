"""Two lanes, the first on this machine and the second an attached server, which answer one after the other."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from specchat.app.sources.observed import retold
from specchat.engine import (
    Died,
    EngineError,
    Event,
    Finished,
    LaneEngine,
    LaneReady,
    Order,
    Outbox,
    Ready,
    Request,
)

if TYPE_CHECKING:
    from specchat.app.sources.attached import AttachedEngine

_WAIT_S = 0.05


class AttachedLanes:
    """A lane of an engine here, timed by its clock, beside a server, timed by its own stream.

    They share no clock that could tell the work of one from that of the other, so the server is asked when the lane
    here has ended.

    Args:
        engine: of the first lane, which is its only one.
        server: the second lane.
    """

    order = Order.SEQUENTIAL
    same_target = False

    def __init__(self, engine: LaneEngine, server: AttachedEngine) -> None:
        self._engine = engine
        self._server = server
        self._here = threading.Event()
        """The lane here has ended."""
        self._there = Ready("", None, (), "", "", "", 0, 0, 0, 0, 0.0)

    def start(self) -> None:
        """Ask the server who it is, then begin to load the models.

        Raises:
            EngineError: the server is of no use.
        """
        self._server.start()
        while not self._there.target:
            match self._server.outbox.get(_WAIT_S):
                case Died(message=message):
                    raise EngineError(message)
                case Ready() as ready:
                    self._there = ready
        self._engine.start()

    def wait_ready(self) -> Ready:
        """What the engine here says once it is loaded.

        Raises:
            EngineError: it cannot be.
        """
        return self._engine.wait_ready()

    @property
    def lanes(self) -> tuple[LaneReady, ...]:
        """What is known of each lane."""
        return (*self._engine.lanes, LaneReady(self._there, 0.0, None, None))

    def submit(self, request: Request, outbox: Outbox | None = None, lane: int = 0) -> None:
        """Submit a request to a lane; the server is asked when the lane here has ended.

        Raises:
            EngineError: the request cannot be served.
        """
        assert outbox is not None  # there are two engines: neither one's own outbox would do
        own = Outbox()
        if lane == 0:
            self._here.clear()
            self._engine.submit(request, own)
        threading.Thread(target=self._pass_on, args=(request, own, outbox, lane), name="lane", daemon=True).start()

    def close(self) -> None:
        """End both."""
        self._server.close()
        self._engine.close()

    def _pass_on(self, request: Request, own: Outbox, outbox: Outbox, lane: int) -> None:
        """Hand the events of one reply on; those of the server when all has been said of its tokens."""
        if lane == 1:
            self._here.wait()
            self._server.submit(replace(request, drafter="auto", gamma=None), own)
        events: list[Event] = []
        while not events or not isinstance(events[-1], Finished):
            if (event := own.get(_WAIT_S)) is not None:
                events.append(event)
        if lane == 0:
            self._here.set()
        for told in retold(events):
            if not isinstance(told, Request):  # only a trace has one
                outbox.put(told)
