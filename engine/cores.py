"""Cores: how many there are, and one that the quantised kernels leave to another thread while that is busy."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable


class SpareCore:
    """Takes a core from the kernels' threads; the bits of a pass stay the same.

    A thread that is given the core of one of them holds up the piece of work that that one has begun, and the others
    wait for it: on two cores, a millisecond of drawing costs both of them a millisecond. A pass that goes on with one
    thread less loses half of that.

    Args:
        limit: tells the kernels how many threads may compute; 0 for all.
        cores: how many this process may use.
    """

    def __init__(self, limit: Callable[[int], object], cores: int) -> None:
        self._limit = limit
        self._others = cores - 1

    def take(self) -> None:
        """The calling thread is busy: no more threads compute than there are other cores."""
        self._limit(self._others)

    def give_back(self) -> None:
        """It waits for something again."""
        self._limit(0)


def spare_core() -> SpareCore | None:
    """None where there is one core alone, or no kernels of this version: that is said where a model is loaded."""
    from specchat.engine.kernels.build import LIBRARY  # a program of its own, which wants to be imported by nobody else

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
