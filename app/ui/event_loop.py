"""The app's event loop, which computes beside the engine's threads."""

from __future__ import annotations

import asyncio
import selectors
import sys
from typing import Any

from textual.app import App

from specchat.engine import SpareCore, spare_core


class BusySelector(selectors.DefaultSelector):
    """Selector that takes a core from when something has come until its loop waits again."""

    def __init__(self, core: SpareCore) -> None:
        super().__init__()
        self._core = core

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What has come within `timeout` seconds; a loop that has something to do does not wait."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        self._core.give_back()
        try:
            return super().select(timeout)
        finally:
            self._core.take()

    def close(self) -> None:
        """The loop has ended."""
        self._core.give_back()
        super().close()


def run_app(app: App[Any]) -> None:
    """Run an app until it is left; a loop that is no selector's takes no core."""
    core = spare_core()
    if core is None or sys.platform == "win32":
        app.run()
        return
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(BusySelector(core))) as runner:
        runner.run(app.run_async())
