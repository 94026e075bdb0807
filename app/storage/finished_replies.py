"""The replies of all chats that have ended, as texts."""

from __future__ import annotations

from collections.abc import Collection

from specchat.app.storage.store_file import StoreFile

_AT_ONCE = 500
"""Rows that are asked for by one statement."""
_IN_SIGHT = (
    "FROM messages m JOIN chats c ON c.id = m.chat_id WHERE c.deleted_at IS NULL AND m.role = 'assistant'"
    " AND m.finish_reason IS NOT NULL"
)
"""Those of chats that are not deleted."""


class FinishedReplies:
    """Those of one store.

    Args:
        file: The store's.
    """

    def __init__(self, file: StoreFile) -> None:
        self._file = file

    def newest(self, model: str, at_most: int) -> list[int]:
        """The rows of the newest replies of a model, newest first.

        Raises:
            StoreError: the file cannot be read.
        """
        rows = self._file.read(f"SELECT m.id {_IN_SIGHT} AND m.model = ? ORDER BY m.id DESC LIMIT ?", (model, at_most))
        return [row for (row,) in rows]

    def still_there(self, rows: Collection[int]) -> set[int]:
        """Which of these rows are replies of chats that are not deleted.

        Raises:
            StoreError: the file cannot be read.
        """
        found: set[int] = set()
        asked = tuple(rows)
        for start in range(0, len(asked), _AT_ONCE):
            some = asked[start : start + _AT_ONCE]
            marks = ", ".join("?" * len(some))
            found.update(row for (row,) in self._file.read(f"SELECT m.id {_IN_SIGHT} AND m.id IN ({marks})", some))
        return found

    def exchange(self, row: int) -> tuple[str, str]:
        """A reply's prompt, as it was typed, and the reply; empty where there is none.

        Raises:
            StoreError: the file cannot be read.
        """
        query = "SELECT coalesce(p.content, ''), m.content FROM messages m LEFT JOIN messages p ON p.id = m.parent"
        found = self._file.read(f"{query} WHERE m.id = ?", (row,))
        return found[0] if found else ("", "")
