"""Workers that run beside the interface."""

from __future__ import annotations

from collections.abc import Callable, Coroutine

from textual.app import App
from textual.worker import WorkType


def run_in_background(app: App[None], work: Callable[[], Coroutine[None, None, None]], group: str) -> None:
    """Run an asynchronous function; it takes the place of one that is running in the same group."""
    typed: WorkType[None] = work
    app.run_worker(typed, group=group, exclusive=True, exit_on_error=False)
