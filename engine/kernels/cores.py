"""CPU cores: how many this process may use, and one reserved for a thread that is none of the kernels' threads."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable


class SpareCore:
    """A core that a thread of this process reserves while it is busy: the kernels use one thread fewer.

    Otherwise the scheduler preempts a kernel thread in the middle of a piece of work, and all others wait for it: on
    two cores, a millisecond of drawing costs both of them a millisecond. With one thread fewer a pass loses half of
    that. Results are bit-identical.

    Args:
        limit: sets the maximum number of kernel threads; 0 for no limit.
        cores: number of cores this process may use.
    """

    def __init__(self, limit: Callable[[int], object], cores: int) -> None:
        self._limit = limit
        self._others = cores - 1

    def reserve(self) -> None:
        """Limit the kernels to the other cores while the calling thread is busy."""
        self._limit(self._others)

    def release(self) -> None:
        """Remove the limit."""
        self._limit(0)


def spare_core() -> SpareCore | None:
    """The spare core of this process; None with a single core, or without kernels of this version.

    Loading a model reports missing kernels.
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
    """Number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
