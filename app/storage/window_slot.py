"""A number for each program that has a store open, free again when the program ends, however it ends."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where all programs have the number 0
    fcntl = None  # type: ignore[assignment]


class WindowSlot:
    """Held by a lock on a file beside the store, which a kill releases too.

    Args:
        store: The file of the store.
        wanted: Numbers that are taken first if they are free: those that have an unsent text from an earlier run.

    Raises:
        OSError: the folder does not allow a lock.
    """

    def __init__(self, store: Path, wanted: Collection[int]) -> None:
        self.number = 0
        self._handle: int | None = None
        if fcntl is None:
            return
        for number in chain(sorted(wanted), (n for n in count() if n not in wanted)):
            self._handle = _locked(store, number)
            if self._handle is not None:
                self.number = number
                return

    def release(self) -> None:
        """Let another program have the number."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


@contextmanager
def while_free(store: Path, number: int) -> Iterator[bool]:
    """Whether the program that had a number has ended; no other can have it meanwhile.

    Raises:
        OSError: the folder does not allow a lock.
    """
    handle = None if fcntl is None else _locked(store, number)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            os.close(handle)


def _locked(store: Path, number: int) -> int | None:
    """What holds a number until it is closed; None where a program has it."""
    handle = os.open(f"{store}.window-{number}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle
