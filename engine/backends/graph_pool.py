"""Graph pool: functions without arguments as CUDA graphs that share their memory.

Launching a small model's kernels one by one costs more than running them. A function that cannot be captured runs
eagerly each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from specchat.engine.errors import first_line

T = TypeVar("T")


class GraphPool:
    """CUDA graphs of one device.

    Args:
        device: where they run.
        capture: whether functions become graphs; if not, they run eagerly (to test the shapes without a GPU).
    """

    def __init__(self, device: torch.device, *, capture: bool) -> None:
        self.device = device
        self.not_captured: str | None = None
        """Why some function is no CUDA graph although asked for; None if all are."""
        self._capture = capture
        self._pool = torch.cuda.graph_pool_handle() if capture else None

    def graph(self, run: Callable[[], T]) -> Callable[[], T]:
        """`run` as a CUDA graph; as it is where it cannot be captured.

        What it returns lies in memory that all graphs share: it is there until another graph runs. Only what capturing
        itself raises counts as a reason not to. What the function raises is for the caller, and so is a shortage of
        memory: the next try may find some.
        """
        if not self._capture:
            return run
        self._warm(run)
        try:
            return self._captured(run)
        except RuntimeError as error:
            # What fails in a capture makes its end fail too: the first error is the reason.
            reasons = list(_chain(error))
            if any(map(_is_shortage, reasons)):
                raise torch.OutOfMemoryError(first_line(reasons[-1])) from error
            self.not_captured = first_line(reasons[-1])
            return run

    def _warm(self, run: Callable[[], object]) -> None:
        """The first calls, outside of a graph, let libraries set themselves up."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                run()
        torch.cuda.current_stream().wait_stream(stream)

    def _captured(self, run: Callable[[], T]) -> Callable[[], T]:
        """`run` as a CUDA graph."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            # thread_local: other threads may allocate during the capture.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                made = run()
        finally:
            torch.cuda.set_stream(stream)  # a capture that fails leaves its own

        def replay() -> T:
            graph.replay()
            return made

        return replay


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error, and those that it came from."""
    reason: BaseException | None = error
    while reason is not None:
        yield reason
        reason = reason.__cause__ or reason.__context__


def _is_shortage(error: BaseException) -> bool:
    """Whether memory was lacking: CUDA's libraries say so in errors of their own."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in text or "alloc_failed" in text
