"""The app's event loop: a core is reserved for it while it is busy, and only then."""

import asyncio
import sys
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from specchat.app.ui.event_loop import BusySelector
from specchat.engine import SpareCore, spare_core
from tests.terminal import Terminal

CORES = 4
BUSY, WAITING = CORES - 1, 0
"""What the kernels' threads are limited to."""


def run(main: Coroutine[Any, Any, None], limits: list[int]) -> None:
    core = SpareCore(limits.append, CORES)
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(BusySelector(core))) as runner:
        runner.run(main)


def test_a_loop_that_waits_leaves_all_cores_to_the_kernels() -> None:
    limits: list[int] = []
    seen: list[int] = []

    async def main() -> None:
        for _ in range(3):
            await asyncio.sleep(0.01)
            seen.append(limits[-1])
            thread = threading.Timer(0.01, lambda: seen.append(limits[-1]))
            thread.start()
            await asyncio.to_thread(thread.join)

    run(main(), limits)
    assert seen == [BUSY, WAITING] * 3


def test_the_core_is_released_when_the_loop_ends() -> None:
    limits: list[int] = []

    async def main() -> None:
        await asyncio.sleep(0.001)
        raise ValueError("over")

    with pytest.raises(ValueError, match="over"):
        run(main(), limits)
    assert limits[-1] == WAITING


@pytest.mark.skipif(spare_core() is None, reason="there is no spare core")
def test_the_app_runs_on_it() -> None:
    script = """
import asyncio
from textual.app import App
from specchat.app.ui.event_loop import run_app
class Says(App):
    def on_mount(self):
        self.exit(message=type(asyncio.get_running_loop()._selector).__name__)
run_app(Says())
"""
    with Terminal(sys.executable, "-c", script) as terminal:
        terminal.wait_for(BusySelector.__name__)
