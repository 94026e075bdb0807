"""A lane's worker whose turns a test takes, in its own thread: only there the pretended device is known."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specchat.engine import EngineConfig, Event, Outbox, Ready, Request
from specchat.engine.commands import Submit
from specchat.engine.lanes.worker import LaneWorker
from specchat.engine.models.load import LoadedModel
from specchat.engine.worker.assembly import assemble_loaded


class Turns:
    """A worker that has loaded its models.

    Args:
        target: the model.
        parts: what drafts for it, as `assemble_loaded` takes them.
        options: of the engine's configuration.
    """

    def __init__(self, target: LoadedModel, parts: dict[str, Any] | None = None, **options: Any) -> None:
        self.box = Outbox()
        self.readies: list[Ready] = []
        config = EngineConfig("tiny", Path(), **{"slots": 3, "context": 256} | options)
        self._lane = LaneWorker(config, self.box, self.readies)
        self.made = self._lane.load(lambda config, _: assemble_loaded(config, target, **parts or {}))

    def submit(self, requests: Sequence[Request]) -> None:
        """Submit requests, which later turns serve."""
        for request in requests:
            self._lane.take(Submit(request, self.box, 0.0))

    @property
    def busy(self) -> bool:
        """Whether there are requests to serve."""
        return self._lane.busy

    def turn(self) -> list[Event]:
        """Take a turn: its events."""
        self._lane.turn()
        return self.box.drain()

    def rest(self) -> list[Event]:
        """Take turns until all requests have ended: their events."""
        events: list[Event] = []
        while self.busy:
            events += self.turn()
        return events

    def end(self) -> list[Event]:
        """End the worker: its last events."""
        self._lane.end()
        return self.box.drain()
