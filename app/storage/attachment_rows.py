"""Attachments in the store: of messages, and of what is typed and not sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from specchat.app.storage.attachment import Attachment
from specchat.app.storage.store_file import StoreFile, storable

_COLUMNS = "kind, name, text, tokens, path"
_INSERT = f"INSERT INTO attachments (message_id, draft_id, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"


class AttachmentRows:
    """One table, in which each row has a message or an unsent text as its owner."""

    def __init__(self, file: StoreFile) -> None:
        self._file = file

    def of_chat(self, chat_id: int) -> dict[int, tuple[Attachment, ...]]:
        """Those of each message of a chat that has any, in order."""
        own = "SELECT id FROM messages WHERE chat_id = ?"
        query = f"SELECT message_id, {_COLUMNS} FROM attachments WHERE message_id IN ({own}) ORDER BY id"
        return _by_owner(self._file.read(query, (chat_id,)))

    def add(self, message_id: int, attachments: Sequence[Attachment]) -> None:
        """Store those of a new message."""
        with self._file.write() as db:
            db.executemany(_INSERT, [(message_id, None, *self._values(each)) for each in attachments])

    def set_tokens(self, message_id: int, name: str, tokens: int) -> None:
        """Store how many tokens one of a message's takes."""
        with self._file.write() as db:
            db.execute(
                "UPDATE attachments SET tokens = ? WHERE message_id = ? AND name = ?",
                (tokens, message_id, storable(name)),
            )

    def copy(self, message_id: int, to: int) -> None:
        """Give another message the same ones."""
        query = f"SELECT ?, {_COLUMNS} FROM attachments WHERE message_id = ? ORDER BY id"
        with self._file.write() as db:
            db.execute(f"INSERT INTO attachments (message_id, {_COLUMNS}) {query}", (to, message_id))

    def unsent(self) -> dict[int, tuple[Attachment, ...]]:
        """Those of what is typed and not sent, by the chat's id; 0 is the chat that is not stored yet."""
        rows = self._file.read(f"SELECT draft_id, {_COLUMNS} FROM attachments WHERE draft_id IS NOT NULL ORDER BY id")
        return {draft - 1: attachments for draft, attachments in _by_owner(rows).items()}

    def keep_unsent(self, chat_id: int, attachments: Sequence[Attachment]) -> None:
        """Store those of what is typed and not sent in a chat, or 0, whose text is stored already."""
        with self._file.write() as db:
            db.execute("DELETE FROM attachments WHERE draft_id = ?", (chat_id + 1,))
            db.executemany(_INSERT, [(None, chat_id + 1, *self._values(each)) for each in attachments])

    def _values(self, one: Attachment) -> tuple[object, ...]:
        return one.kind, storable(one.name), storable(one.text), one.tokens, storable(one.path)


def _by_owner(rows: Iterable[tuple[Any, ...]]) -> dict[int, tuple[Attachment, ...]]:
    owned: dict[int, tuple[Attachment, ...]] = {}
    for owner, *values in rows:
        owned[owner] = (*owned.get(owner, ()), Attachment(*values))
    return owned
