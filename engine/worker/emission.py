"""Emission of records while the next round runs: a queue of work for one thread."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread

Work = Callable[[], None]
"""Makes and emits the records of a round."""


class Emission:
    """Thread that emits records, in order.

    Where passes block the engine's thread, they do so without the interpreter's lock, and this thread works during
    them. Work for a device that computes by itself begins once the next pass has been launched, as it would delay that.

    Args:
        held: whether work waits for `release`.
    """

    def __init__(self, *, held: bool) -> None:
        self._held = held
        self._waiting: list[Work] = []
        self._queue = SimpleQueue[Work | None]()
        self._begun = self._done = 0
        """Work that the thread has been given, and what it has done of it."""
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="emission", daemon=True)
        self._thread.start()

    def put(self, work: Work) -> None:
        """Queue work, once that of the round before is done: events are never more than a round late."""
        self._wait()
        if self._held:
            self._waiting.append(work)
        else:
            self._begin(work)

    def release(self) -> None:
        """Begin the work that has been held: the next pass has been launched, or none comes."""
        for work in self._waiting:
            self._begin(work)
        self._waiting.clear()

    def finish(self) -> None:
        """Wait until all work has been done; what is still held is done by the calling thread.

        Raises:
            Exception: what some work has raised since the last call.
        """
        self._wait()
        error, self._error = self._error, None
        if error is not None:
            raise error
        for work in self._waiting:
            work()
        self._waiting.clear()

    def close(self) -> None:
        """End the thread once all work is done."""
        self.finish()
        self._queue.put(None)
        self._thread.join()

    def _wait(self) -> None:
        if self._done < self._begun:
            passed = Event()
            self._begin(passed.set)
            passed.wait()

    def _begin(self, work: Work) -> None:
        self._begun += 1
        self._queue.put(work)

    def _run(self) -> None:
        while work := self._queue.get():
            try:
                work()
            except BaseException as error:  # the engine's thread ends by it; this one serves those who wait for it
                self._error = error
            del work  # it holds the engine
            self._done += 1
