"""How often the screen follows the engine."""

from __future__ import annotations

from dataclasses import dataclass

FRAME_S = 1 / 30
FOLLOW_S = 1 / 10
"""Scrolling draws all lines and the scrollbar: the view follows the end of a reply no more often than this."""
FIGURES_S, FIGURES_FRAMES = 1 / 2, 6
"""Figures are taken no more often than this, and with one of so many frames at most: they want to be read, and cost as
much as several frames of text."""
TURNS_S = 1 / 15
"""With frames that follow each other as fast as this, each of several replies is drawn with every other one."""


@dataclass(slots=True)
class Pace:
    """Seconds between two frames, and what not every frame does. One screen's pump sets it, its widgets share it."""

    frame_s: float = FRAME_S

    @property
    def follow_every(self) -> int:
        """The view follows the end of a reply with one of so many frames."""
        return max(round(FOLLOW_S / self.frame_s), 1)

    @property
    def figures_every(self) -> int:
        """Figures are taken with one of so many frames; line, panel and timeline show the same ones."""
        return max(round(FIGURES_S / self.frame_s), FIGURES_FRAMES)

    @property
    def turns(self) -> int:
        """Of several replies beside each other, each is drawn with one of so many frames."""
        return 2 if self.frame_s <= TURNS_S else 1
