"""How often the screen follows the engine."""

from __future__ import annotations

FRAME_S = 1 / 30
SHARED_FRAME_S = 1 / 15
"""Where the engine runs on the processor, each drawing takes from it, and it says little in a thirtieth of a second."""


def frame_s(device: str) -> float:
    """Seconds between two frames.

    Args:
        device: the engine's, as in `Ready`.
    """
    return SHARED_FRAME_S if device.startswith("cpu") else FRAME_S
