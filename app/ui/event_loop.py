"""The app's event loop: while it is busy, a core is reserved for it, on which the engine's threads do not compute."""

import asyncio
import selectors
from typing import Any

from textual.app import App

from specchat.engine import SpareCore, spare_core


class BusySelector(selectors.DefaultSelector):
    """Selector that reserves a core while its event loop runs callbacks, and releases it while the loop waits."""

    def __init__(self, core: SpareCore) -> None:
        super().__init__()
        self._core = core

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Ready file objects, as of any selector. With a timeout of 0 the loop has callbacks to run, and stays busy."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        self._core.release()
        try:
            return super().select(timeout)
        finally:
            self._core.reserve()

    def close(self) -> None:
        """Release the core with the selector."""
        self._core.release()
        super().close()


def release_core() -> None:
    """Release the core in a callback that blocks the loop without computing, such as one that runs another program."""
    core = spare_core()
    if core is not None:
        core.release()


def run_app(app: App[Any]) -> None:
    """Run an app until it exits; on the default event loop where there is no spare core."""
    core = spare_core()
    if core is None:
        app.run()
        return
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(BusySelector(core))) as runner:
        runner.run(app.run_async())
