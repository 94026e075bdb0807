"""Progress reports of long operations."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, str, float | None], None]
"""Called with the stage (see `engine.events.Loading`), a short sentence for the user without a trailing full stop,
and the fraction done, 0 to 1, or None if unknown. It may raise to stop the work."""


def ignore_progress(stage: str, text: str, fraction: float | None) -> None:
    """Progress callback that does nothing."""


def size_text(count: float) -> str:
    """Bytes as text: 93 MB, 6.4 GB (powers of 1000)."""
    if count < 999_500:
        return f"{count / 1e3:.0f} kB"
    if count < 999_500_000:
        return f"{count / 1e6:.0f} MB"
    return f"{count / 1e9:.1f} GB"
