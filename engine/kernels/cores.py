"""CPU cores: how many this process may use, and one reserved for another thread than the quantised kernels' own."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable


class SpareCore:
    """A core that a thread of this process reserves while it is busy: the kernels compute with one thread fewer.

    Without it the scheduler preempts a kernel thread in the middle of a piece of work, and all others wait for that
    piece: on two cores, a millisecond of drawing costs both of them a millisecond. With one thread fewer a pass loses
    half of that, and its bits stay the same.

    Args:
        limit: tells the kernels how many threads may compute; 0 for all.
        cores: how many this process may use.
    """

    def __init__(self, limit: Callable[[int], object], cores: int) -> None:
        self._limit = limit
        self._others = cores - 1

    def reserve(self) -> None:
        """The calling thread is busy: the kernels compute with as many threads as there are other cores, at most."""
        self._limit(self._others)

    def release(self) -> None:
        """It waits for events again: the kernels may compute with all their threads."""
        self._limit(0)


def spare_core() -> SpareCore | None:
    """The spare core of this process; None where it has one core alone, or no kernels of this version.

    That kernels are missing is said where a model is loaded.
    """
    # Imported with this package, the module could not be run by `python -m` without a warning.
    from specchat.engine.kernels.build import LIBRARY

    cores = usable_cores()
    if cores == 1 or not LIBRARY.exists():
        return None
    try:
        limit = ctypes.PyDLL(str(LIBRARY)).sk_limit_threads  # keeps the GIL: to release it costs more than the call
    except (OSError, AttributeError):
        return None
    limit.restype, limit.argtypes = None, [ctypes.c_int32]
    return SpareCore(limit, cores)


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
