"""Two lanes, the first on this machine and the second an attached server, which answer one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from specchat.app.sources.observed import resolve_rounds
from specchat.engine import (
    Died,
    EngineError,
    Event,
    Finished,
    FinishReason,
    LaneEngine,
    LaneReady,
    Loading,
    Order,
    Outbox,
    Ready,
    Request,
)

if TYPE_CHECKING:
    from specchat.app.sources.attached import AttachedEngine

SPECCHAT_SERVER = "specchat serve"
"""The set-up of a server of ours, which says of itself what an engine here says, and so no name."""
OWN_STREAM = (
    "The right lane is the server at {}, timed by its own stream: what else that server does counts, and so does the "
    "network, unless it is a specchat serve, whose records have its times."
)
UNMET = Ready("", None, (), "", "", "", 0, 0, 0, 0, 0.0)
"""Stands for a server that has not said who it is."""
_WAIT_S = 0.05


class AttachedLanes:
    """A lane of an engine here, timed by its clock, beside a server, timed by its own stream.

    They share no clock that could tell the work of one from that of the other, so the server is asked when the lane
    here has ended. No method but `wait_ready` waits for the server.

    Args:
        engine: of the first lane, which is its only one.
        server: the second lane.
        live: whether the server's events are handed on as they come; else at the end of its reply, with rounds in the
            place of tokens that it has told apart by then.
    """

    order = Order.SEQUENTIAL
    same_target = False

    def __init__(self, engine: LaneEngine, server: AttachedEngine, *, live: bool) -> None:
        self._engine = engine
        self._server = server
        self._live = live
        self._there = UNMET
        self._refusal: str | None = None
        """Why the server is of no use; None where it is, or has not been met."""
        self._held: list[Event] = []
        """What the engine here has said and is not given yet: its `Ready`, while the server has not been met."""
        self._asking: Loading | None = None
        """Says that the server is being asked; not given yet."""
        self._lock = threading.Lock()
        self._here: set[str] = set()
        """Requests that run in the lane here."""
        self._waiting: dict[str, tuple[Request, Outbox]] = {}
        """Requests that the server is asked when those have ended."""

    def start(self) -> None:
        """Ask the server who it is, and begin to load the models."""
        self._server.start()
        self._engine.start()

    def wait_ready(self) -> Ready:
        """Wait until the server has been met and the models are loaded; returns what the engine here then says.

        Raises:
            EngineError: the server is of no use, or the models cannot be loaded.
        """
        while not self._met:
            if (event := self._server.outbox.get(_WAIT_S)) is not None:
                self._hear(event)
        if self._refusal is not None:
            raise EngineError(self._refusal)
        return self._engine.wait_ready()

    @property
    def lanes(self) -> tuple[LaneReady, ...]:
        """What is known of each lane, once the models here are loaded; of the server `UNMET` if it is of no use."""
        here = self._engine.lanes
        return (*here, LaneReady(self._there, 0.0, None, None)) if here else ()

    def drain(self) -> list[Event]:
        """What concerns both lanes since the last call; `Ready` when the server has been met, or is of no use.

        A server that is of no use says so in each of its replies, and is met again with each: it may be started late.
        """
        for event in self._server.outbox.drain():
            self._hear(event)
        self._held += self._engine.drain()
        ready = next((place for place, event in enumerate(self._held) if isinstance(event, Ready)), len(self._held))
        count = len(self._held) if self._met else ready
        given, self._held = self._held[:count], self._held[count:]
        if self._held and self._asking is not None:
            given, self._asking = [*given, self._asking], None
        return given

    def submit(self, request: Request, outbox: Outbox | None = None, lane: int = 0) -> None:
        """Submit a request to a lane; the server is asked when the lane here has ended.

        Raises:
            EngineError: the lane here cannot serve the request; the server says so by a `Finished`.
        """
        assert outbox is not None  # there are two engines: neither one's own outbox would do
        name = request.request_id
        if lane == 0:
            with self._lock:
                self._here.add(name)
            try:
                self._engine.submit(request, _Relay(outbox, partial(self._ended_here, name)))
            except EngineError:
                self._ended_here(name)
                raise
            return
        with self._lock:
            box = outbox if self._live else _Retold(outbox)
            if self._here:
                self._waiting[name] = request, box
            else:
                self._ask(request, box)

    def cancel(self, request_id: str) -> None:
        """End a request of either lane, also one that the server has not been asked. Unknown ids are ignored."""
        with self._lock:
            if request_id in self._waiting:
                _request, outbox = self._waiting.pop(request_id)
                outbox.put(Finished(request_id, FinishReason.CANCELLED, "", "", 0.0))
        self._engine.cancel(request_id)
        self._server.cancel(request_id)

    def close(self) -> None:
        """End both."""
        for name in list(self._waiting):
            self.cancel(name)
        self._server.close()
        self._engine.close()

    @property
    def _met(self) -> bool:
        """Whether the server has said who it is, or that it is of no use."""
        return self._there is not UNMET or self._refusal is not None

    def _hear(self, event: Event) -> None:
        """Take in what the server says of itself."""
        match event:
            case Loading():
                self._asking = event
            case Died(message=message):
                self._refusal = message
            case Ready():
                self._there = event

    def _ended_here(self, request_id: str) -> None:
        """A request has left the lane here: the server's turn, if it was the last."""
        with self._lock:
            self._here.discard(request_id)
            if not self._here:
                waiting, self._waiting = self._waiting, {}
                for request, outbox in waiting.values():
                    self._ask(request, outbox)

    def _ask(self, request: Request, outbox: Outbox) -> None:
        """Ask the server, which drafts as it was started to."""
        try:
            self._server.submit(replace(request, drafter="auto", gamma=None), outbox)
        except EngineError as error:
            outbox.put(Finished(request.request_id, FinishReason.ERROR, "", str(error), 0.0))


class _Relay(Outbox):
    """Hands the events of one reply on as they come, and says when it has ended."""

    def __init__(self, to: Outbox, ended: Callable[[], None]) -> None:
        super().__init__()
        self._to = to
        self._ended = ended

    def put(self, event: Event) -> None:
        """Hand one event on."""
        self._to.put(event)
        if isinstance(event, Finished):
            self._ended()


class _Retold(Outbox):
    """Hands the events of one reply on at its end, when all has been said of its tokens."""

    def __init__(self, to: Outbox) -> None:
        super().__init__()
        self._to = to

    def put(self, event: Event) -> None:
        """Keep one event; the last one lets all go."""
        super().put(event)
        if isinstance(event, Finished):
            for told in resolve_rounds(self.drain()):
                if not isinstance(told, Request):  # only a trace has one
                    self._to.put(told)
