"""Folders and files of specchat: the platform's own (platformdirs), or all in `SPECCHAT_HOME`. Creates none of them."""

from pathlib import Path

import platformdirs

from specchat.engine import home_folder

TOUR = Path(__file__).resolve().parents[1] / "assets" / "traces" / "tour.jsonl"
"""The recorded reply of the tour."""


def data_folder() -> Path:
    """The chats."""
    return _home("data") or platformdirs.user_data_path("specchat", appauthor=False)


def config_folder() -> Path:
    """The settings."""
    return _home("config") or platformdirs.user_config_path("specchat", appauthor=False)


def state_folder() -> Path:
    """Data that may be lost: the last copied text, what was learnt of drafters."""
    return _home("state") or platformdirs.user_state_path("specchat", appauthor=False)


def exports_folder() -> Path:
    """Screenshots and exported chats: in the user's documents if that folder exists."""
    documents = platformdirs.user_documents_path()
    return _home("exports") or (documents / "specchat" if documents.is_dir() else data_folder() / "exports")


def database_file() -> Path:
    """The SQLite file of `app.storage.store.Store`."""
    return data_folder() / "specchat.db"


def heads_folder() -> Path:
    """Draft heads that were learnt from the chats."""
    return data_folder() / "heads"


def kept_folder(database: Path) -> Path:
    """What was read of the chats of a database (`EngineConfig.kept`)."""
    return database.with_suffix(".cache")


def settings_file() -> Path:
    """The TOML file of `app.settings.settings`."""
    return config_folder() / "settings.toml"


def _home(name: str) -> Path | None:
    home = home_folder()
    return home and home / name
