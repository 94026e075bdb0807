"""CUDA graphs of one model: capture, and a plan of further captures for when the engine has time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from functools import lru_cache
from math import inf
from typing import Any, TypeVar, cast

import torch

from specchat.engine.device.device import is_shortage
from specchat.engine.errors import first_line

T = TypeVar("T")
_CAPTURE = threading.Lock()
"""Held by the thread that captures: a process captures one graph at a time (an engine closes while the next loads)."""

NEEDED, FIRST, LATER = range(3)
"""Ranks of planned captures: a call lacked it; one chat needs it; this and more, the less likely to be needed."""


class GraphPool:
    """CUDA graphs of one device, which share their memory.

    Args:
        device: where they run.
        capture: whether functions become graphs; if not, they run eagerly with static shapes (to test these without a
            GPU).
    """

    def __init__(self, device: torch.device, *, capture: bool) -> None:
        self.device = device
        self.not_captured: str | None = None
        """Why some function runs eagerly although capture was requested; None if all are captured."""
        self.count = 0
        """Graphs captured so far."""
        self.defers = False
        """Whether functions that are called before they are captured run eagerly; else they are captured at once."""
        self.planned: dict[Hashable, tuple[int, Callable[[], object]]] = {}
        """Rank and capture of what is to be captured."""
        self._full = False
        self._capture = capture
        self._pool = torch.cuda.graph_pool_handle() if capture else None

    @property
    def next_rank(self) -> float:
        """The lowest rank that is planned; infinite if nothing is."""
        return min((rank for rank, _ in self.planned.values()), default=inf)

    def plan(self, key: Hashable, rank: int, capture: Callable[[], object]) -> None:
        """Plan a capture, to be done by `capture_next`; of one rank the first that was planned comes first."""
        if not self._full:
            self.planned[key] = rank, capture

    def capture_next(self) -> None:
        """Do the planned capture of the lowest rank.

        Raises:
            torch.OutOfMemoryError: there is not enough memory for it.
        """
        self.planned.pop(min(self.planned, key=lambda key: self.planned[key][0]))[1]()

    def give_up(self, reason: str) -> None:
        """Capture nothing more, for lack of memory."""
        self.not_captured, self._full = reason, True
        self.planned.clear()

    def graph(self, run: Callable[[], T]) -> Callable[[], T]:
        """`run` as a CUDA graph, or `run` itself where it cannot be captured.

        Results are in memory that all graphs share: they are valid until another graph runs. Only an error of the
        capture itself leads to the fallback. Errors of the function are raised, and so is a shortage of memory.

        Raises:
            torch.OutOfMemoryError: there is not enough memory for the graph.
        """
        if not self._capture:
            return run
        with _CAPTURE:
            warm(run, self.device)
            try:
                replay = capture(run, self.device, self._pool)
            except RuntimeError as error:
                self._replace_pool()
                # An error inside a capture makes the end of the capture fail too: the first error is the reason.
                reasons = list(_causes(error))
                if any(map(is_shortage, reasons)):
                    raise torch.OutOfMemoryError(first_line(reasons[-1])) from error
                self.not_captured = first_line(reasons[-1])
                return run
        self.count += 1
        return replay

    def _replace_pool(self) -> None:
        """Take a new memory pool. A failed capture leaves the old one open for allocation (pytorch#180395)."""
        with suppress(RuntimeError, AttributeError):  # it was closed already, or torch is built without CUDA
            index, pool = torch.cuda.current_device(), cast(tuple[int, int], self._pool)
            torch._C._cuda_endAllocateToPool(index, pool)
            torch._C._cuda_releasePool(index, pool)
        self._pool = torch.cuda.graph_pool_handle()


def warm(run: Callable[[], object], device: torch.device) -> None:
    """Call twice outside of a graph, so that libraries initialise themselves."""
    stream = _stream(device)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(stream)


def capture(run: Callable[[], T], device: torch.device, pool: Any) -> Callable[[], T]:
    """Capture a function as a CUDA graph in a memory pool; returns its replay."""
    graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        # thread_local: other threads may allocate during the capture.
        with torch.cuda.graph(graph, pool=pool, stream=_stream(device), capture_error_mode="thread_local"):
            made = run()
    finally:
        torch.cuda.set_stream(before)  # a capture that fails leaves its own

    def replay() -> T:
        graph.replay()
        return made

    return replay


@lru_cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Stream of warm-ups and captures. One for all, since each stream gets its own workspace of cuBLAS."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes, the first cause last."""
    reason: BaseException | None = error
    while reason is not None:
        yield reason
        reason = reason.__cause__ or reason.__context__
