"""Shows the load of the machine, once per second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from textual.app import App

from specchat.app.sources.probe import Probe
from specchat.app.ui.background import run_in_background

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
        self._app.set_interval(PROBE_S, lambda: run_in_background(self._app, self._measure, "probe"))

    async def _measure(self) -> None:
        interface = self._probe.interface()
        self._show(await asyncio.to_thread(self._probe.gpu), interface)
