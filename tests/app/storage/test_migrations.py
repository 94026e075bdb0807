"""Older databases are brought up to date with their chats."""

from __future__ import annotations

from pathlib import Path

import pytest

from specchat.app.errors import StoreError
from specchat.app.storage import database
from specchat.app.storage.store import Store
from tests.app.storage.helpers import Clock


def test_an_older_database_is_migrated_with_its_chats(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(path, Clock()) as store:
        chat = store.create_chat("old")
    step = ("ALTER TABLE chats ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0",)
    monkeypatch.setattr(database, "_MIGRATIONS", (*database._MIGRATIONS, step))
    for _ in range(2):  # the second time there is nothing left to do
        with Store(path) as store:
            assert store.notice is None
            assert store.chats() == [chat]
            assert store._db.execute("SELECT pinned FROM chats").fetchall() == [(0,)]


def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(path, Clock()) as store:
        chat = store.create_chat("old")
    step = ("ALTER TABLE chats ADD COLUMN pinned", "ALTER TABLE nothing ADD COLUMN x")
    with monkeypatch.context() as patch:
        patch.setattr(database, "_MIGRATIONS", (*database._MIGRATIONS, step))
        with pytest.raises(StoreError, match="nothing"):
            Store(path)
    with Store(path) as store:
        assert store.chats() == [chat]
