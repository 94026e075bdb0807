"""What one run of the app works with: source, settings, store. Made after the first frame is on screen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specchat.app.sources.source import Source

if TYPE_CHECKING:
    from specchat.app.settings.settings import Settings
    from specchat.app.storage.store import Store


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
    """Stores the settings that are changed in the app; None if they are not stored."""
    attached: bool = False
    """Whether the source is a server, which has models that the settings do not name."""
