"""Attachments of prompts (files and long pastes) and their table in the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from specchat.app.storage.store_file import StoreFile, storable

FILE, PASTE = "file", "paste"
_COLUMNS = "kind, name, text, tokens, path"
_INSERT = f"INSERT INTO attachments (message_id, draft_id, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"


@dataclass(frozen=True, slots=True)
class Attachment:
    """One text. The prompt refers to a file by `@` and its name, to a paste by its name alone."""

    kind: str
    """`FILE` or `PASTE`."""
    name: str
    """Path of a file as it was typed, or the placeholder of a paste."""
    text: str
    """The whole text that the model gets."""
    tokens: int | None = None
    """Length in tokens of a prompt; None before it was counted."""
    path: str = ""
    """Path of a file that is not sent yet and is read again; else empty."""

    def is_same(self, other: Attachment) -> bool:
        """Whether name and text are equal."""
        return (self.name, self.text) == (other.name, other.text)


class AttachmentRows:
    """The table of attachments. Each row belongs to a message or to an unsent text."""

    def __init__(self, file: StoreFile) -> None:
        self._file = file

    def of_chat(self, chat_id: int) -> dict[int, tuple[Attachment, ...]]:
        """Attachments of a chat by message, in order."""
        own = "SELECT id FROM messages WHERE chat_id = ?"
        query = f"SELECT message_id, {_COLUMNS} FROM attachments WHERE message_id IN ({own}) ORDER BY id"
        return _by_owner(self._file.read(query, (chat_id,)))

    def add(self, message_id: int, attachments: Sequence[Attachment]) -> None:
        """Store the attachments of a new message."""
        self._insert(attachments, message_id, None)

    def set_tokens(self, message_id: int, name: str, tokens: int) -> None:
        """Store the number of tokens of an attachment."""
        query = "UPDATE attachments SET tokens = ? WHERE message_id = ? AND name = ?"
        with self._file.write() as db:
            db.execute(query, (tokens, message_id, storable(name)))

    def copy(self, message_id: int, to: int) -> None:
        """Copy the attachments of one message to another."""
        query = f"SELECT ?, {_COLUMNS} FROM attachments WHERE message_id = ? ORDER BY id"
        with self._file.write() as db:
            db.execute(f"INSERT INTO attachments (message_id, {_COLUMNS}) {query}", (to, message_id))

    def unsent(self) -> dict[int, tuple[Attachment, ...]]:
        """Attachments of unsent texts by the key of the text."""
        rows = self._file.read(f"SELECT draft_id - 1, {_COLUMNS} FROM attachments WHERE draft_id NOT NULL ORDER BY id")
        return _by_owner(rows)

    def keep_unsent(self, key: int, attachments: Sequence[Attachment]) -> None:
        """Replace the attachments of an unsent text."""
        with self._file.write() as db:
            db.execute("DELETE FROM attachments WHERE draft_id = ?", (key + 1,))
            self._insert(attachments, None, key + 1)

    def _insert(self, attachments: Sequence[Attachment], message_id: int | None, draft_id: int | None) -> None:
        rows = [
            (message_id, draft_id, one.kind, storable(one.name), storable(one.text), one.tokens, storable(one.path))
            for one in attachments
        ]
        with self._file.write() as db:
            db.executemany(_INSERT, rows)


def _by_owner(rows: Iterable[tuple[Any, ...]]) -> dict[int, tuple[Attachment, ...]]:
    owned: dict[int, tuple[Attachment, ...]] = {}
    for owner, *values in rows:
        owned[owner] = (*owned.get(owner, ()), Attachment(*values))
    return owned
