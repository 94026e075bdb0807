"""Texts of earlier runs: their cache is loaded before requests are served, and written when the engine is asked to."""

from __future__ import annotations

from concurrent.futures import InvalidStateError
from contextlib import suppress
from pathlib import Path

from specchat.engine.cache.kept_texts import KeptTexts
from specchat.engine.commands import KeepTexts
from specchat.engine.sequence.scheduler import Scheduler
from specchat.engine.worker.assembly import Assembly
from specchat.engine.worker.notices import Notices

DAMAGED = "a kept cache was damaged and has been deleted: its chat is read again"


class Keeping:
    """The files of an engine, if there is a folder for them and its target can continue from blocks alone.

    Args:
        folder: of the files of all engines, if any.
        made: what the engine runs with.
        scheduler: of the slots.
    """

    def __init__(self, folder: Path | None, made: Assembly, scheduler: Scheduler) -> None:
        self._scheduler, self._files = scheduler, None
        target = made.target
        if folder is not None and target.capabilities.prefixes and not target.cache.states:
            models = [(each.fingerprint, each.format) for each in (made.model, *made.drafts)]
            parts = [(kind, part.name, part.weight_bytes) for kind, part in made.parts.items()]
            self._files = KeptTexts(scheduler.pool, folder, (models, parts, target.short_context))

    def load(self, notices: Notices) -> None:
        """Load what is kept."""
        slot = self._scheduler.free_slot
        if self._files and slot is not None and not self._files.load(slot):
            notices.tell([DAMAGED])

    def save(self, wanted: KeepTexts) -> None:
        """Write texts, unless all slots are in use or the disk is full."""
        slot = self._scheduler.free_slot
        if self._files and slot is not None:
            with suppress(OSError):
                self._files.save(slot, self._scheduler.pool.latest_texts(wanted.names))
        with suppress(InvalidStateError):
            wanted.result.set_result(None)
