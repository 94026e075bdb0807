"""How often the screen follows the engine."""

from __future__ import annotations

FRAME_S = 1 / 30
SHARED_FRAME_S = 1 / 8
"""Where the engine runs on the processor, each drawing takes from it, and it says little in a thirtieth of a second."""
FOLLOW_S = 1 / 10
"""Scrolling draws all lines and the scrollbar: the end of a reply is followed no more often than this."""


def follow_every(frame: float) -> int:
    """With which of so many frames the end of a reply is brought into sight.

    Args:
        frame: seconds between two frames.
    """
    return max(round(FOLLOW_S / frame), 1)


def frame_s(device: str) -> float:
    """Seconds between two frames.

    Args:
        device: the engine's, as in `Ready`.
    """
    return SHARED_FRAME_S if device.startswith("cpu") else FRAME_S
