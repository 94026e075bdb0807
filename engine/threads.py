"""Background threads that a program waits for at its end."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

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
