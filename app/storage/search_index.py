"""Full-text search over titles, prompts with their attachments, and replies (SQLite FTS5).

Search text is words, never query syntax. Replies are indexed when they have ended, so that streaming costs no indexing.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from specchat.app.storage.database import StoreFile

MOST = 50
"""Hits that a search returns."""
BATCH = 500
"""Messages indexed in one transaction, which takes a few milliseconds."""
BEGIN, END = "\x02", "\x03"
"""Mark the start and end of each found word in `Hit.excerpt`."""
ABANDONED_S = 3600.0
"""Age at which a reply without an end is indexed: its program was killed."""
ATTACHED = "attached"
"""The role of a hit in an attachment."""
_ATTACHED = (
    "coalesce((SELECT group_concat(char(10) || name || char(10) || text, '') FROM attachments"
    " WHERE message_id = messages.id), '')"
)
"""Names and texts of the attachments of a message."""
_SAID = "coalesce((SELECT group_concat(text, char(10)) FROM parts WHERE message_id = messages.id), '')"
"""Thinking and text of a message."""
_WORDS = 14
"""Length of an excerpt in words."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One place that contains the words."""

    chat_id: int
    title: str
    message_id: int | None
    """None for a hit in the title."""
    role: str
    excerpt: str
    """The text around it, with `BEGIN` and `END` around each found word."""


class SearchIndex:
    """The index of one store; `now` gives seconds since 1970."""

    def __init__(self, file: StoreFile, now: Callable[[], float] = time.time) -> None:
        self._file, self._now = file, now

    def update(self) -> bool:
        """Index up to `BATCH` new titles, prompts and ended replies; return whether there may be more.

        Raises:
            StoreError: the file cannot be read or written.
        """
        ended = "role = 'user' OR finish_reason IS NOT NULL OR created_at < ?"
        rows = self._file.read(
            f"SELECT id, {_SAID}, {_ATTACHED} FROM messages WHERE indexed = 0 AND ({ended}) LIMIT ?",
            (self._now() - ABANDONED_S, BATCH),
        )
        titles = self._file.read("SELECT -id, title FROM chats WHERE indexed = 0 LIMIT ?", (BATCH,))
        if rows or titles:
            texts = [(row_id, said + attached) for row_id, said, attached in rows]
            with self._file.write() as db:
                db.executemany("INSERT OR REPLACE INTO search (rowid, text) VALUES (?, ?)", [*texts, *titles])
                # A reply that has grown since it was read stays marked.
                unchanged = f"UPDATE messages SET indexed = 1 WHERE id = ? AND {_SAID} = ?"
                db.executemany(unchanged, [(row_id, said) for row_id, said, _ in rows])
                unchanged = "UPDATE chats SET indexed = 1 WHERE id = ? AND title = ?"
                db.executemany(unchanged, [(-row_id, text) for row_id, text in titles])
        return max(len(rows), len(titles)) == BATCH

    def find(self, text: str) -> list[Hit]:
        """Return the newest `MOST` hits, titles first. Every word must occur; the last one may be a prefix.

        A word that starts with # is a tag, which only titles have.

        Raises:
            StoreError: the file cannot be read.
        """
        words = ['"' + word.replace('"', '""') + '"' for word in text.replace("\0", " ").split()]
        if not words:
            return []
        query = " ".join(words) + "*"
        excerpt = f"snippet(search, 0, '{BEGIN}', '{END}', '…', {_WORDS})"
        titles = self._file.read(
            f"SELECT c.id, c.title, NULL, '', {excerpt} FROM search CROSS JOIN chats c ON c.id = -search.rowid"
            " WHERE search MATCH ? AND search.rowid < 0 AND c.deleted_at IS NULL ORDER BY search.rowid LIMIT ?",
            (query, MOST),
        )
        if any(word.startswith('"#') for word in words):
            return [Hit(*row) for row in titles]
        messages = self._file.read(
            f"SELECT c.id, c.title, messages.id, messages.role, {excerpt}, {_SAID} FROM search"
            " CROSS JOIN messages ON messages.id = search.rowid CROSS JOIN chats c ON c.id = messages.chat_id"
            " WHERE search MATCH ? AND search.rowid > 0 AND c.deleted_at IS NULL ORDER BY search.rowid DESC LIMIT ?",
            (query, MOST),
        )
        hits = [Hit(*row) for row in titles]
        for *row, content in messages:
            hit = Hit(*row)
            up_to_hit = hit.excerpt.partition(END)[0].replace(BEGIN, "").removeprefix("…")
            hits.append(hit if up_to_hit in content else replace(hit, role=ATTACHED))
        return hits[:MOST]
