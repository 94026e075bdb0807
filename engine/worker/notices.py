"""Notices of an engine, such as performance warnings; each is emitted once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specchat.engine.events import Notice
from specchat.engine.outbox import Outbox
from specchat.engine.worker.assembly import Assembly


class Notices:
    """Emits notices to the users of an engine.

    Args:
        made: what the engine runs with.
        outbox: for events that concern the engine as a whole.
        clock: seconds since the engine started.
    """

    def __init__(self, made: Assembly, outbox: Outbox, clock: Callable[[], float]) -> None:
        self._made = made
        self._outbox = outbox
        self._clock = clock
        self._told: set[str] = set()

    def tell(self, texts: Sequence[str]) -> None:
        """Emit the notices that have not been emitted."""
        for text in texts:
            if text not in self._told:
                self._told.add(text)
                self._outbox.put(Notice(None, text, self._clock()))

    def tell_warnings(self) -> None:
        """Say what keeps passes from being fast: a shape may be met late."""
        self.tell(performance_warnings(self._made))


def performance_warnings(made: Assembly) -> list[str]:
    """What has kept the models from being as fast as they could be here, a sentence each."""
    models, runners = (made.model, *made.drafts), (made.target, *made.draft_runners)
    return [
        f"{model.name}: {warning}: it runs slower than it could"
        for model, passes in zip(models, runners, strict=True)
        for warning in passes.performance_warnings
    ]
