"""Where specchat keeps things: models in the cache, chats in the data folder, settings in the configuration folder.

The folders are the platform's own (platformdirs). `SPECCHAT_HOME` puts all of them under one folder instead. Nothing
here creates a folder; whoever writes into it does.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

TOUR = Path(__file__).resolve().parents[1] / "assets" / "traces" / "detail.jsonl"
"""The recorded reply that the tour is about."""


def data_folder() -> Path:
    """The chats."""
    return _home("data") or platformdirs.user_data_path("specchat", appauthor=False)


def config_folder() -> Path:
    """The settings."""
    return _home("config") or platformdirs.user_config_path("specchat", appauthor=False)


def state_folder() -> Path:
    """What can be lost without harm: the last text that was copied."""
    return _home("state") or platformdirs.user_state_path("specchat", appauthor=False)


def exports_folder() -> Path:
    """Pictures of the screen and exported chats: among the user's documents, where there is a folder for them."""
    documents = platformdirs.user_documents_path()
    return _home("exports") or (documents / "specchat" if documents.is_dir() else data_folder() / "exports")


def database_file() -> Path:
    """The SQLite file of `app.storage.store.Store`."""
    return data_folder() / "specchat.db"


def settings_file() -> Path:
    """The TOML file of `app.settings.settings`."""
    return config_folder() / "settings.toml"


def _home(name: str) -> Path | None:
    home = os.environ.get("SPECCHAT_HOME")
    return Path(home).expanduser().absolute() / name if home else None
