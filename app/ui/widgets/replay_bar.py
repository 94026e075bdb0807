"""Where the composer would be while a trace is played: how far it has got, and how fast it goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual.events import Click
from textual.message import Message
from textual.widget import Widget

from specchat.app.sources.player import Player
from specchat.app.ui.rendering.figures import clock_time, meter


class ReplayBar(Widget):
    """One line."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"replay-bar--full", "replay-bar--empty", "replay-bar--quiet"}
    ALLOW_SELECT = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._player: Player | None = None
        self._shown = Text()
        self._span = (0, 0)
        """Where the line begins, and its cells."""

    @dataclass
    class Sought(Message):
        """The user wants to be at this time of the trace."""

        position: float

    def on_click(self, event: Click) -> None:
        """A place on the line is a time."""
        player, (left, width) = self._player, self._span
        if player is not None and left <= event.x < left + width:
            self.post_message(self.Sought((event.x - left) / max(width - 1, 1) * player.duration))

    def play(self, player: Player) -> None:
        """Show this player."""
        self._player = player

    def update(self) -> None:
        """Draw again if something has moved."""
        line = self._line()
        if line != self._shown:
            self._shown = line
            self.refresh()

    def render(self) -> Text:
        """The line as it was last updated, at the present width."""
        return self._line()

    def _line(self) -> Text:
        player = self._player
        if player is None:
            return Text()
        sign = "■" if player.ended else "‖" if player.paused else "▶"
        left = f"{sign} {clock_time(player.position)} "
        right = f" {clock_time(player.duration)}  ×{player.speed:g}"
        share = player.position / player.duration if player.duration else 1.0
        width = max(self.size.width - len(left) - len(right), 0)
        self._span = (len(left), width)
        full, empty = meter(share, width)
        return Text.assemble(
            left,
            (full, self._style("full")),
            (empty, self._style("empty")),
            (right, self._style("quiet")),
            no_wrap=True,
        )

    def _style(self, part: str) -> Style:
        return self.get_component_rich_style(f"replay-bar--{part}", partial=True)
