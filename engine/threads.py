"""Background threads that a program waits for at its end; one of them loads torch's library early."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

_PATIENCE_S = 60.0
"""How long the end of the program waits for a thread that has been asked to stop."""


class JoinedThread(threading.Thread):
    """Daemon thread that is asked to stop, and waited for, when the program ends.

    CPython up to 3.13 ends other daemon threads by unwinding their stacks, which aborts the program if a thread is
    inside C++ code such as torch's; and that code may use what the end of the process has destroyed.

    Args:
        name: name of the thread.
        work: what it runs.
        stop: called when the program ends; `work` then returns soon. None if it returns soon anyway.
    """

    def __init__(self, name: str, work: Callable[[], None], stop: Callable[[], object] | None = None) -> None:
        super().__init__(target=work, name=name, daemon=True)
        self._ask_to_stop = stop

    def run(self) -> None:
        """Do the work."""
        try:
            super().run()
        finally:
            self._ask_to_stop = None  # it may hold what holds this thread

    @staticmethod
    def running() -> list[JoinedThread]:
        """All threads of this kind that have not ended."""
        return [thread for thread in threading.enumerate() if isinstance(thread, JoinedThread)]

    @staticmethod
    def end_all() -> None:
        """Ask all of them to stop, and wait for them."""
        threads = JoinedThread.running()
        for thread in threads:
            if (stop := thread._ask_to_stop) is not None:
                stop()
        for thread in threads:
            thread.join(_PATIENCE_S)


atexit.register(JoinedThread.end_all)


_LIBRARIES = (("libtorch_global_deps.so", ctypes.RTLD_GLOBAL), ("libtorch_cpu.so", ctypes.RTLD_LOCAL))
"""Libraries in torch's own order, with its modes (`torch._load_global_deps`)."""


def preload_torch() -> None:
    """Begin to load torch's library, a sixth of its import, while the program still reads its command line.

    Where there is nothing to gain, or it fails, nothing happens: torch's import does the rest, and reports what is
    wrong.
    """
    found = find_spec("torch") if sys.platform == "linux" and "torch" not in sys.modules else None
    if found is None or found.origin is None:
        return
    folder = Path(found.origin).parent / "lib"
    JoinedThread("preload", partial(_load, folder)).start()


def _load(folder: Path) -> None:
    # Called as a plain function, as ctypes.CDLL keeps Python's lock while it loads.
    load = ctypes.CDLL(None).dlopen
    load.restype, load.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_int]
    for name, mode in _LIBRARIES:
        load(os.fsencode(folder / name), os.RTLD_NOW | mode)
