"""The thread that runs jobs on the store, with retries after failures."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from specchat.app.errors import AppError, LostRowError

T = TypeVar("T")
RETRY_S = 1.0
"""Interval of retries after a failure (full disk, file locked by another program)."""


class StoreWriter:
    """Runs jobs in one background thread, in the order they were given.

    Changes that cannot be stored are kept and retried in order before later jobs, so that no prompt is missing and no
    reply has a gap. `on_error` is called in this thread with a sentence when that starts, and for each other job that
    failed.
    """

    def __init__(self, on_error: Callable[[str], None]) -> None:
        self._on_error = on_error
        self._backlog: deque[Callable[[], None]] = deque()
        """Changes that are not stored yet, oldest first; used in the thread only."""
        self._retry_at = 0.0
        """When to retry, by `time.monotonic`; 0 without a failure."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="archive")

    @property
    def has_backlog(self) -> bool:
        """Whether changes are not stored yet; for jobs in the thread."""
        return bool(self._backlog)

    def do(self, job: Callable[[], T]) -> Future[T | None]:
        """Run a job once; the result is None if it fails."""

        def guarded() -> T | None:
            try:
                self._catch_up()
                return job()
            except AppError as error:
                self._on_error(str(error))
                return None

        return self._thread.submit(guarded)

    def in_order(self, change: Callable[[], None]) -> Future[None]:
        """Store a change after all changes before it, now or later."""

        def job() -> None:
            self._backlog.append(change)
            self._catch_up()

        return self.do(job)

    def close(self) -> None:
        """Try the changes that are not stored yet once more, and end the thread."""

        def last_try() -> None:
            self._retry_at = 0.0
            self._catch_up()

        self.do(last_try)
        self._thread.shutdown(wait=True)

    def _catch_up(self) -> None:
        """Store the backlog; after a failure not before `RETRY_S`, and only the first failure is raised."""
        if time.monotonic() < self._retry_at:
            return
        while self._backlog:
            try:
                self._backlog[0]()
            except LostRowError as error:
                self._on_error(str(error))
            except AppError:
                known = self._retry_at > 0
                self._retry_at = time.monotonic() + RETRY_S
                if not known:
                    raise
                return
            self._backlog.popleft()
        self._retry_at = 0.0
