"""How long work reports where it stands."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, str, float | None], None]
"""Called with the stage (see `engine.events.Loading`), a short sentence for the user without a trailing full stop,
and the fraction done, 0 to 1, or None where the length is unknown. It may raise to stop the work."""


def ignore_progress(stage: str, text: str, fraction: float | None) -> None:
    """The progress nobody watches."""


def size_text(count: float) -> str:
    """Bytes as people read them: 93 MB, 6.4 GB (powers of 1000, as disks and download pages count)."""
    if count < 999_500:
        return f"{count / 1e3:.0f} kB"
    if count < 999_500_000:
        return f"{count / 1e6:.0f} MB"
    return f"{count / 1e9:.1f} GB"
