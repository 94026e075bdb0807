"""Work between rounds: other uses of the loaded models, captures of CUDA graphs, texts of earlier runs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import InvalidStateError
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import torch

from specchat.engine.cache.kept_texts import KeptTexts
from specchat.engine.commands import Borrow, KeepTexts
from specchat.engine.device.device import to_device
from specchat.engine.device.graphs import LATER
from specchat.engine.errors import EngineError, check, first_line
from specchat.engine.events import Captured
from specchat.engine.progress import Progress
from specchat.engine.round import TokenScore
from specchat.engine.sequence.detokenizer import Detokenizer
from specchat.engine.sequence.sequence import Scheduler
from specchat.engine.worker.assembly import OUT_OF_MEMORY, Assembly
from specchat.engine.worker.notices import Notices


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


class Captures:
    """The captures of an engine, with their memory and time.

    Args:
        made: what the engine runs with.
    """

    def __init__(self, made: Assembly) -> None:
        self._made = made
        self._bytes, self._seconds = 0, 0.0

    def made(self, at: float) -> Captured:
        """The graphs captured so far."""
        captured, left = self._made.graphs
        return Captured(captured, self._bytes, self._seconds, left, at)

    def warm_up(self, chunk: int, progress: Progress, *, complete: bool) -> bool:
        """Run passes, so that kernels are chosen, and plan captures.

        Args:
            chunk: most tokens of a pass.
            progress: called for each capture.
            complete: whether all graphs are captured now, and none while requests are served.

        Returns:
            Whether there was enough memory.
        """
        progress("warm-up", "warming up", None)
        made, target = self._made, self._made.target
        try:
            if target.capabilities.captured:  # the largest pass: it needs most memory, and loads its kernels
                longest = torch.zeros(1, min(chunk, target.context), dtype=torch.int64)
                target.prefill(longest.to(target.device), [0], [0])
            with self.measured():
                made.warm_up()
                while made.capture_next(inf if complete else LATER):
                    text = "compiling and capturing CUDA graphs, the first start is the longest"
                    progress("warm-up", f"{text}: {made.graphs[0]} captured", None)
        except torch.OutOfMemoryError:
            return False
        for pool in made.graph_pools:
            pool.defers = not complete
        return True

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Context manager that counts time and memory of its work as spent on captures."""
        began, before = time.monotonic(), self._reserved()
        yield
        self._seconds += time.monotonic() - began
        self._bytes += self._reserved() - before

    def is_next(self, below: float) -> bool:
        """Whether a capture of a rank below this is planned."""
        return any(pool.next_rank < below for pool in self._made.graph_pools)

    def next(self) -> bool:
        """Do the planned capture of the lowest rank; if there is not enough memory for it, drop this and all others.

        Returns:
            Whether there was enough memory.
        """
        try:
            with self.measured():
                self._made.capture_next()
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            for pool in self._made.graph_pools:
                pool.give_up(first_line(error))
            return False
        return True

    def _reserved(self) -> int:
        """Bytes that torch has taken from the GPU."""
        device = self._made.target.device
        return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0


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


_CHUNK = 32
"""Tokens per pass: the logits of each, and the recurrent states after each, are in memory at once."""


def score(made: Assembly, slot: int, *, ids: Sequence[int], top: int) -> Generator[None, None, list[TokenScore]]:
    """Read a text with the target, a pass per step: no prefix that the cache knows is reused, as it has no logits.

    Args:
        made: the loaded models.
        slot: a reserved slot of the target's cache.
        ids: the text, at most the target's context.
        top: number of most likely tokens that each score lists.

    Returns:
        The scores of all tokens but the first.
    """
    target, scores = made.target, list[TokenScore]()
    check(made.model.start is None, f"{made.model.name} continues no text, so that none can be scored")
    names = Detokenizer(made.model.tokenizer, ())
    for start in range(0, len(ids) - 1, _CHUNK):
        following = ids[start + 1 : start + 1 + _CHUNK]
        fed = to_device([list(ids[start : start + len(following)])], target.device)
        with torch.inference_mode():
            log_p = target.forward(fed, [slot], [start])[0].float().log_softmax(-1)
            best = log_p.topk(min(top, log_p.shape[-1]))
            own = log_p.gather(-1, to_device([[token] for token in following], target.device))[:, 0].tolist()
        told = f"{made.model.name} computed something that is not a number: try another --dtype"
        check(not bool(log_p.isnan().any()), told)
        for logprob, tokens, values in zip(own, best.indices.tolist(), best.values.tolist(), strict=True):
            named = zip(map(names.name, tokens), values, strict=True)
            scores.append(TokenScore(logprob, tuple(named)))
        yield
    return scores
