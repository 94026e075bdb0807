"""What the app works with, made after its first frame is on screen: rounds, chats, preferences."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.source import Source

if TYPE_CHECKING:
    from app.settings import Settings
    from app.store import Store


@dataclass(frozen=True, slots=True)
class Session:
    """One run of the app."""

    source: Source
    settings: Settings | None = None
    """None in a replay: nothing is asked."""
    store: Store | None = None
    """None where nothing is stored: a replay, or a store that cannot be opened."""
    notices: tuple[str, ...] = ()
    """Sentences to show at the start."""
    settings_file: Path | None = None
    """Where what is chosen in the app is kept; None if it is not."""
