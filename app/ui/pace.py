"""How often the screen follows the engine."""

from __future__ import annotations

from dataclasses import dataclass

FRAME_S = 1 / 30
SHARED_FRAME_S = 1 / 8
"""Where the engine runs on the CPU, drawing takes from its time, and it says little in a thirtieth of a second."""
FOLLOW_S = 1 / 10
"""Scrolling draws all lines and the scrollbar: the view follows the end of a reply no more often than this."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between two frames."""

    frame_s: float = FRAME_S

    @property
    def follow_every(self) -> int:
        """The view follows the end of a reply with one of so many frames."""
        return max(round(FOLLOW_S / self.frame_s), 1)


def pace_for(device: str) -> Pace:
    """The pace that suits an engine on this device, named as in `Ready`."""
    return Pace(SHARED_FRAME_S if device.startswith("cpu") else FRAME_S)
