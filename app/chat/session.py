"""Source, settings and store of one run of the app, created after the first frame is on screen."""

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
    """None in a replay."""
    store: Store | None = None
    """None if nothing is stored: in a replay, or if the store cannot be opened."""
    notices: tuple[str, ...] = ()
    """Messages to show at the start."""
    settings_file: Path | None = None
    """File for settings that are changed in the app; None if they are not stored."""
    attached: bool = False
    """Whether the source is a server, whose models the settings do not name."""
