"""Emission of records while later rounds run: a queue of work for one thread."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from queue import SimpleQueue
from threading import Event, Thread

Work = Callable[[], None]
"""Makes and emits the records of a round."""
_MOST_HELD, MOST_HELD_S = 8, 0.024
"""Rounds whose records are made together, and seconds of rounds, if that is less. After each short pass, the code that
makes them would have to be read from memory again: records of some rounds take hardly longer than one."""


class Emission:
    """Thread that emits records, in order.

    Where passes block the engine's thread, they do so without the interpreter's lock, and this thread works during
    them. Work for a device that computes by itself begins once the next pass has been launched, as it would delay that.

    Args:
        held: whether work waits for `on_launch`.
    """

    def __init__(self, *, held: bool) -> None:
        self._held = held
        self._waiting: list[Work] = []
        self._waiting_s = 0.0
        """Seconds of the rounds whose work waits."""
        self._queue = SimpleQueue[Work | None]()
        self._begun = self._done = 0
        """Work that the thread has been given, and what it has done of it."""
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="emission", daemon=True)
        self._thread.start()

    def put(self, work: Work, seconds: float = inf) -> None:
        """Take in the work of a round that took `seconds`.

        It begins when there are enough rounds (`_MOST_HELD`), once earlier work is done.
        """
        self._waiting.append(work)
        self._waiting_s += seconds
        if not self._held:
            self.on_launch()

    def on_launch(self) -> None:
        """The next pass has been launched: begin the work that waits, if it is enough."""
        if len(self._waiting) >= _MOST_HELD or self._waiting_s >= MOST_HELD_S:
            self.release()

    def flush(self) -> None:
        """Begin work that waits for more rounds: something longer than a round comes first."""
        if not self._held:
            self.release()

    def release(self) -> None:
        """Begin all work that waits."""
        if self._waiting:
            self._wait()
        for work in self._taken():
            self._begin(work)

    def finish(self) -> None:
        """Wait until all work has been done; what is still held is done by the calling thread.

        Raises:
            Exception: what some work has raised since the last call.
        """
        self._wait()
        error, self._error = self._error, None
        if error is not None:
            raise error
        for work in self._taken():
            work()

    def close(self) -> None:
        """End the thread once all work is done.

        Raises:
            Exception: as `finish`.
        """
        try:
            self.finish()
        finally:
            self._queue.put(None)
            self._thread.join()

    def _taken(self) -> list[Work]:
        """The work that waits, which does so no longer."""
        work, self._waiting, self._waiting_s = self._waiting, [], 0.0
        return work

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
