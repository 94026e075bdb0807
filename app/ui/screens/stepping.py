"""Pausing between rounds, and going through them part by part."""

from __future__ import annotations

from collections.abc import Callable

from textual.screen import Screen

from specchat.app.sources.stepper import Stepper
from specchat.app.ui.screens.inspection import Inspection
from specchat.app.ui.widgets.step_bar import StepBar


class Stepping:
    """The keys that pause and step, and the bar that says what a round has come to.

    Args:
        screen: Has the class `-paused` while rounds are held back.
        bar: Says what the round does.
        inspection: Knows the reply that is shown.
        redraw: Takes in what has come, and draws the screen.
    """

    def __init__(self, screen: Screen[None], bar: StepBar, inspection: Inspection, redraw: Callable[[], None]) -> None:
        self.stepper: Stepper | None = None
        """Holds rounds back; there once the session is."""
        self._screen = screen
        self._bar = bar
        self._inspection = inspection
        self._redraw = redraw

    def toggle(self) -> None:
        """Pause between rounds, or resume."""
        if self.stepper is not None:
            if self.stepper.paused:
                self.stepper.resume()
            else:
                self.stepper.pause()
            self._redraw()

    def step(self) -> None:
        """Show the next part of a round; pauses first."""
        if self.stepper is not None:
            if not self._inspection.open:
                self._inspection.look_at(None)
            if self.stepper.paused:
                self.stepper.step()
            else:
                self.stepper.pause()
            self._redraw()

    def pause(self) -> None:
        """Hold back every round from here on."""
        if self.stepper is not None and not self.stepper.paused:
            self.stepper.pause()

    def resume(self) -> None:
        """Hold nothing back."""
        if self.stepper is not None:
            self.stepper.resume()

    def jump(self, *, back: bool) -> None:
        """The replay stands elsewhere; after a step back, everything up to there is given again."""
        if self.stepper is not None:
            self.stepper.jump(back=back)

    def update(self) -> None:
        """Show what the round that is stepped through has come to."""
        paused = self.stepper is not None and self.stepper.paused
        if paused is not self._screen.has_class("-paused"):
            self._screen.set_class(paused, "-paused")
            self._screen.refresh_bindings()
        if self.stepper is not None and paused:
            reply = self._inspection.reply
            last = reply.rounds[-1] if reply.rounds and reply.running else None
            self._bar.show(self.stepper.shown, last)
