"""Lanes as sources of the app: of one engine, or the first on this machine and the second an attached server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from specchat import engine
from specchat.app.sources.observed import resolve_rounds
from specchat.app.sources.source import Source
from specchat.engine.tools.compare import make_probe
from specchat.engine.tools.lane_figures import top2_gap

if TYPE_CHECKING:
    from specchat.app.sources.attached import AttachedEngine


class LaneSource(Source):
    """Lane of a live engine. The first lane starts and closes all lanes, and returns the records of the whole engine.

    Lanes are compared with each other, so a lane cannot be paused, and a reply cannot be changed.
    """

    def __init__(self, lanes: engine.LaneEngine | AttachedLanes, lane: int) -> None:
        self.gap: float | None = None
        """Result of `ask_gap`, in logits; None until it is known."""
        self.asking = False
        """Whether the result is still to come."""
        self._engine, self._lane = lanes, lane
        self._outbox = engine.Outbox()
        self._request: engine.Request | None = None
        self._probe = ""
        self._answer: list[engine.Record] = []

    def start(self) -> None:
        """Start the engine's thread."""
        if self._lane == 0:
            self._engine.start()

    def submit(self, request: engine.Request) -> None:
        """Generate a reply in the lane."""
        self._request, self.gap = request, None
        self._engine.submit(request, self._outbox, self._lane)

    def cancel(self, request_id: str) -> None:
        """End a reply within one round."""
        self._engine.cancel(request_id)

    def ask_gap(self, comparison: engine.Comparison) -> None:
        """Generate the token after the common prefix of both texts, with the target's top two."""
        if self._request is not None:
            self._answer, self.asking = [], True
            probe = make_probe(self._request, comparison)
            self._probe = probe.request_id
            self._engine.submit(probe, self._outbox)

    def drain(self) -> list[engine.Record]:
        """The lane's records since the last call; the first lane adds the records of the whole engine."""
        said: list[engine.Record] = [*(self._engine.drain() if self._lane == 0 else ())]
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

    def _take_answer(self, record: engine.Record) -> None:
        self._answer.append(record)
        if isinstance(record, engine.Finished):
            self.asking = False
            self.gap = top2_gap([event for event in self._answer if not isinstance(event, engine.Request)])


SPECCHAT_SERVER = "specchat serve"
"""Label of a specchat server, which reports no name."""
OWN_STREAM = (
    "The right lane is the server at {}, timed by its own stream: what else that server does counts, and so does the "
    "network, unless it is a specchat serve, whose records have its times."
)
UNMET = engine.Ready("", None, (), "", "", "", 0, 0, 0, 0, 0.0)
"""State of a server that has not answered yet."""
_WAIT_S = 0.05


class AttachedLanes:
    """A local lane, timed by its engine, and a server, timed by its stream.

    Requests go to the server when the local lane has ended, since they share no clock that could separate their work.
    Only `wait_ready` waits for the server.

    Args:
        local: Engine of the local lane, its only one.
        server: The second lane.
        live: Whether the server's events are forwarded immediately; otherwise at the end of its reply, with rounds
            instead of tokens of unknown fate.
    """

    order = engine.Order.SEQUENTIAL
    same_target = False

    def __init__(self, local: engine.LaneEngine, server: AttachedEngine, *, live: bool) -> None:
        self._engine, self._server, self._live = local, server, live
        self._state = UNMET
        self._refusal: str | None = None
        """Why the server cannot be used; None if it can, or has not answered yet."""
        self._held: list[engine.Event] = []
        """Events of the local engine held back: its `Ready` and later ones, until the server has answered."""
        self._asking: engine.Loading | None = None
        """Held back event about the connection to the server."""
        self._lock = threading.Lock()
        self._here: set[str] = set()
        """Running requests of the local lane."""
        self._waiting: dict[str, tuple[engine.Request, engine.Outbox]] = {}
        """Requests for the server, sent when the local ones have ended."""

    def start(self) -> None:
        """Connect to the server and start to load the models."""
        self._server.start()
        self._engine.start()

    def wait_ready(self) -> engine.Ready:
        """Wait until the server has answered and the models are loaded; return the local engine's `Ready`.

        Raises:
            EngineError: the server cannot be used, or the models cannot be loaded.
        """
        while not self._met:
            if (event := self._server.outbox.get(_WAIT_S)) is not None:
                self._handle(event)
        if self._refusal is not None:
            raise engine.EngineError(self._refusal)
        return self._engine.wait_ready()

    @property
    def lanes(self) -> tuple[engine.LaneReady, ...]:
        """The state of each lane once the local models are loaded; `UNMET` for a server that cannot be used."""
        here = self._engine.lanes
        return (*here, engine.LaneReady(self._state, 0.0, None, None)) if here else ()

    def drain(self) -> list[engine.Event]:
        """Events of both lanes since the last call; `Ready` when the server has answered or failed.

        The connection to a failed server is retried with each reply, which otherwise ends with its error.
        """
        for event in self._server.outbox.drain():
            self._handle(event)
        self._held += self._engine.drain()
        readies = (place for place, event in enumerate(self._held) if isinstance(event, engine.Ready))
        count = len(self._held) if self._met else next(readies, len(self._held))
        given, self._held = self._held[:count], self._held[count:]
        if self._held and self._asking is not None:
            given, self._asking = [*given, self._asking], None
        return given

    def submit(self, request: engine.Request, outbox: engine.Outbox | None = None, lane: int = 0) -> None:
        """Submit a request to a lane; the server gets it when the local lane has ended.

        Raises:
            EngineError: the local lane cannot serve the request; the server reports this by a `Finished`.
        """
        assert outbox is not None  # neither engine's own outbox has the records of both
        name = request.request_id
        if lane == 0:
            with self._lock:
                self._here.add(name)
            try:
                self._engine.submit(request, _Forwarding(partial(self._put_here, outbox)))
            except engine.EngineError:
                self._ended_here(name)
                raise
            return
        with self._lock:
            box = outbox if self._live else _Forwarding(partial(_put_whole, outbox, []))
            if self._here:
                self._waiting[name] = request, box
            else:
                self._ask(request, box)

    def cancel(self, request_id: str) -> None:
        """End a request of either lane, also a waiting one. Unknown ids are ignored."""
        with self._lock:
            if request_id in self._waiting:
                _request, outbox = self._waiting.pop(request_id)
                outbox.put(engine.Finished(request_id, engine.FinishReason.CANCELLED, "", "", 0.0))
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
        """Whether the server has answered or failed."""
        return self._state is not UNMET or self._refusal is not None

    def _handle(self, event: engine.Event) -> None:
        """Handle an event of the server's connection."""
        match event:
            case engine.Loading():
                self._asking = event
            case engine.Died(message=message):
                self._refusal = message
            case engine.Ready():
                self._state = event

    def _put_here(self, outbox: engine.Outbox, event: engine.Event) -> None:
        """Forward an event of the local lane."""
        outbox.put(event)
        if isinstance(event, engine.Finished):
            self._ended_here(event.request_id)

    def _ended_here(self, request_id: str) -> None:
        """Send waiting requests to the server if no local request is left."""
        with self._lock:
            self._here.discard(request_id)
            if not self._here:
                waiting, self._waiting = self._waiting, {}
                for request, outbox in waiting.values():
                    self._ask(request, outbox)

    def _ask(self, request: engine.Request, outbox: engine.Outbox) -> None:
        """Send a request to the server, which drafts by its own options."""
        try:
            self._server.submit(replace(request, drafter="auto", gamma=None), outbox)
        except engine.EngineError as error:
            outbox.put(engine.Finished(request.request_id, engine.FinishReason.ERROR, "", str(error), 0.0))


class _Forwarding(engine.Outbox):
    """Passes each event to a function."""

    def __init__(self, put: Callable[[engine.Event], None]) -> None:
        super().__init__()
        self._put = put

    def put(self, event: engine.Event) -> None:
        """Pass one event."""
        self._put(event)


def _put_whole(outbox: engine.Outbox, held: list[engine.Event], event: engine.Event) -> None:
    """Hold the events of one reply, and forward them at its end, when the fates of all tokens are known."""
    held.append(event)
    if isinstance(event, engine.Finished):
        for told in resolve_rounds(held):
            if not isinstance(told, engine.Request):  # only a trace has one
                outbox.put(told)
