"""Side work: other uses of the loaded models, run in steps between rounds."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from concurrent.futures import InvalidStateError
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from specchat.engine.commands import Borrow
from specchat.engine.errors import EngineError, first_line
from specchat.engine.sequence.scheduler import Scheduler
from specchat.engine.worker.assembly import OUT_OF_MEMORY, Assembly


class _Running(NamedTuple):
    """The job that has a slot."""

    wanted: Borrow
    slot: int
    steps: Generator[None, None, Any]


class SideWork:
    """Runs one job after the other, each in a slot reserved for it.

    Args:
        made: what the engine runs with.
        scheduler: of the slots; requests that wait for one come first.
    """

    def __init__(self, made: Assembly, scheduler: Scheduler) -> None:
        self._made = made
        self._scheduler = scheduler
        self._waiting: deque[Borrow] = deque()
        self._running: _Running | None = None

    @property
    def pending(self) -> bool:
        """Whether a job is waiting or running."""
        return self._running is not None or bool(self._waiting)

    def enqueue(self, wanted: Borrow) -> None:
        """Queue a job."""
        self._waiting.append(wanted)

    def step(self) -> None:
        """Run one step of the current job, if any, once a slot is free."""
        running = self._running or self._begin()
        if running is None:
            return
        if running.wanted.result.cancelled():
            self._end(running)
            return
        with suppress(InvalidStateError):  # cancelled during the step
            try:
                next(running.steps)
            except StopIteration as end:
                self._end(running)
                running.wanted.result.set_result(end.value)
            except Exception as error:
                self._end(running)
                running.wanted.result.set_exception(EngineError(_sentence(error)))

    def _begin(self) -> _Running | None:
        while self._waiting and self._waiting[0].result.cancelled():
            self._waiting.popleft()
        slot = self._scheduler.reserve() if self._waiting else None
        if slot is None:
            return None
        wanted = self._waiting.popleft()
        self._running = _Running(wanted, slot, wanted.work(self._made, slot))
        return self._running

    def _end(self, running: _Running) -> None:
        running.steps.close()
        self._scheduler.release(running.slot)
        self._running = None


def _sentence(error: Exception) -> str:
    if isinstance(error, EngineError):
        return str(error)
    if isinstance(error, torch.OutOfMemoryError):
        return OUT_OF_MEMORY
    return f"it failed on an internal error ({type(error).__name__}: {first_line(error)})"
