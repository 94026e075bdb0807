"""Shows the load of the machine, once per second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from textual.app import App
from textual.worker import WorkType

from specchat.app.sources.probe import Probe

PROBE_S = 1.0


class LoadMeter:
    """Samples a probe once per second, and shows the result.

    Args:
        app: Runs the timer, and the question to the GPU in a thread.
        probe: Measures.
        show: Called with the GPU's load in words and the interface's share of a core.
    """

    def __init__(self, app: App[None], probe: Probe, show: Callable[[str, float | None], None]) -> None:
        self._app = app
        self._probe = probe
        self._show = show

    def start(self) -> None:
        """Measure from here on."""
        self._app.set_interval(PROBE_S, self._begin)

    def _begin(self) -> None:
        work: WorkType[None] = self._measure
        self._app.run_worker(work, group="probe", exclusive=True, exit_on_error=False)

    async def _measure(self) -> None:
        interface = self._probe.interface()
        self._show(await asyncio.to_thread(self._probe.gpu), interface)
