"""The chats on disk: one SQLite file, shared by every specchat that runs.

Replies are stored while they stream (`append_rounds`), each round before it is shown (`app.chat.delivery`). A
reply without a finish reason in a reopened file was interrupted. Write-ahead logging lets two programs read and write
at once.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from specchat.app.errors import StoreError
from specchat.app.storage.attachment import PASTE, Attachment
from specchat.app.storage.attachment_rows import AttachmentRows
from specchat.app.storage.finished_replies import FinishedReplies
from specchat.app.storage.imported import ImportedChat
from specchat.app.storage.search_index import SearchIndex
from specchat.app.storage.store_file import StoreFile, storable
from specchat.app.storage.unsent_rows import UnsentRows


@dataclass(frozen=True, slots=True)
class Chat:
    """One entry of the list of chats. `updated_at` is seconds since 1970."""

    id: int
    title: str
    updated_at: float
    pinned: bool = False
    """Whether it stands above those that are not."""
    system: str = ""
    """Instructions to the model, before the first prompt."""
    thinking: bool | None = None
    """Whether the model thinks, where it can be told; None is as the settings have it."""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One turn. `created_at` is seconds since 1970."""

    id: int
    role: str
    content: str
    created_at: float
    finish_reason: str | None
    """Why the reply ended; None for a prompt, and for a reply that was interrupted or is still being written."""
    events: tuple[str, ...]
    """The trace lines (`engine.to_json`) of the reply, in order."""
    parent: int | None = None
    """The prompt that a reply is to. The reply that a prompt follows, or the prompt, where that had no reply yet; None
    for the first one of a chat."""
    chosen: bool = True
    """Whether the chat goes on with this one, of all with the same parent."""
    attachments: tuple[Attachment, ...] = ()
    """What was sent along with a prompt."""
    model: str = ""
    """What a reply came from, as the settings named it; empty where that is not known."""


class Store:
    """The chats in one file. Every method may be called from any thread and takes a few milliseconds.

    A file that cannot be read is moved aside, never overwritten, and a new one is started; `notice` then says so in
    one sentence.

    Raises:
        StoreError: the file cannot be opened, read or written (no permission, full disk, unknown chat). Any method
            raises it; what was stored before stays.
    """

    def __init__(self, path: Path, now: Callable[[], float] = time.time) -> None:
        self.path = path
        self._now = now
        self._file = file = StoreFile(path)
        self.search = SearchIndex(file, now)
        self.replies = FinishedReplies(file)
        self.attachments = AttachmentRows(file)
        self.unsent = UnsentRows(file, self.attachments)

    @property
    def notice(self) -> str | None:
        """What had to be done to open it, if anything."""
        return self._file.notice

    def chats(self) -> list[Chat]:
        """All chats that are not deleted: the pinned ones, then the others, newest first."""
        rows = self._file.read(
            "SELECT id, title, updated_at, pinned, system, thinking FROM chats WHERE deleted_at IS NULL"
            " ORDER BY pinned DESC, updated_at DESC, id DESC"
        )
        return [
            Chat(row_id, title, at, bool(pinned), system, None if thinking is None else bool(thinking))
            for row_id, title, at, pinned, system, thinking in rows
        ]

    def create_chat(self, title: str = "", system: str = "") -> Chat:
        """A new, empty chat."""
        at, title, system = self._now(), storable(title), storable(system)
        with self._file.write() as db:
            row = db.execute("INSERT INTO chats (title, updated_at, system) VALUES (?, ?, ?)", (title, at, system))
        return Chat(_row_id(row), title, at, system=system)

    def pin_chat(self, chat_id: int, pinned: bool) -> None:
        """Let a chat stand above those that are not pinned, or among them again."""
        self._file.change(f"chat {chat_id}", "UPDATE chats SET pinned = ? WHERE id = ?", (pinned, chat_id))

    def set_system(self, chat_id: int, system: str) -> None:
        """Change the instructions to the model."""
        self._file.change(f"chat {chat_id}", "UPDATE chats SET system = ? WHERE id = ?", (storable(system), chat_id))

    def set_thinking(self, chat_id: int, thinking: bool | None) -> None:
        """Change whether the model thinks."""
        self._file.change(f"chat {chat_id}", "UPDATE chats SET thinking = ? WHERE id = ?", (thinking, chat_id))

    def prompts(self, at_most: int) -> list[str]:
        """The newest different prompts of all chats, oldest of them first; none that lacks a paste elsewhere."""
        rows = self._file.read(
            "SELECT content, max(id) AS newest FROM (SELECT m.id, m.content FROM messages m JOIN chats c"
            " ON c.id = m.chat_id WHERE m.role = 'user' AND c.deleted_at IS NULL AND NOT EXISTS"
            " (SELECT 1 FROM attachments a WHERE a.message_id = m.id AND a.kind = ?) ORDER BY m.id DESC LIMIT ?)"
            " GROUP BY content ORDER BY newest",
            (PASTE, at_most),
        )
        return [content for content, _ in rows]

    def models(self) -> list[str]:
        """What replies came from, the one that answered last first."""
        rows = self._file.read("SELECT model FROM messages WHERE model != '' GROUP BY model ORDER BY max(id) DESC")
        return [str(model) for (model,) in rows]

    def rename_chat(self, chat_id: int, title: str) -> None:
        """Change the title; the place in the list stays."""
        self._file.change(
            f"chat {chat_id}", "UPDATE chats SET title = ?, indexed = 0 WHERE id = ?", (storable(title), chat_id)
        )

    def delete_chat(self, chat_id: int) -> None:
        """Take the chat off the list; `restore_chat` brings it back."""
        self._file.change(f"chat {chat_id}", "UPDATE chats SET deleted_at = ? WHERE id = ?", (self._now(), chat_id))

    def restore_chat(self, chat_id: int) -> None:
        """Undo `delete_chat`."""
        self._file.change(f"chat {chat_id}", "UPDATE chats SET deleted_at = NULL WHERE id = ?", (chat_id,))

    def events(self, message_id: int) -> tuple[str, ...]:
        """The trace lines of a reply, in order."""
        rows = self._file.read("SELECT line FROM events WHERE message_id = ? ORDER BY id", (message_id,))
        return tuple(line for (line,) in rows)

    def messages(self, chat_id: int, *, events: bool = True) -> list[StoredMessage]:
        """The messages of a chat, oldest first; without their trace lines where these are not wanted."""
        with self._file.lock:
            rows = self._file.read(
                "SELECT id, role, content, created_at, finish_reason, parent, chosen, model FROM messages"
                " WHERE chat_id = ? ORDER BY id",
                (chat_id,),
            )
            own = "SELECT id FROM messages WHERE chat_id = ?"
            query = f"SELECT message_id, line FROM events WHERE message_id IN ({own}) ORDER BY id"
            lines = self._file.read(query, (chat_id,)) if events else []
            attached = self.attachments.of_chat(chat_id)
        by_message: dict[int, list[str]] = {}
        for message_id, line in lines:
            by_message.setdefault(message_id, []).append(line)
        return [
            StoredMessage(
                row_id,
                role,
                content,
                at,
                reason,
                tuple(by_message.get(row_id, ())),
                parent,
                bool(chosen),
                attached.get(row_id, ()),
                model,
            )
            for row_id, role, content, at, reason, parent, chosen, model in rows
        ]

    def add_message(
        self,
        chat_id: int,
        role: str,
        content: str,
        *,
        parent: int | None = None,
        chosen: bool = True,
        attachments: Sequence[Attachment] = (),
        model: str = "",
    ) -> int:
        """Append a message (a reply: before its first token) and return its id; the chat becomes the newest.

        A chosen one takes the place of those that follow the same parent.
        """
        at = self._now()
        with self._file.write() as db:
            self._file.touch(db, f"chat {chat_id}", "UPDATE chats SET updated_at = ? WHERE id = ?", (at, chat_id))
            row = db.execute(
                "INSERT INTO messages (chat_id, role, content, created_at, parent, chosen, model)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (chat_id, role, storable(content), at, parent, chosen, storable(model)),
            )
            if chosen:
                self.choose(_row_id(row))
            if attachments:
                self.attachments.add(_row_id(row), attachments)
        return _row_id(row)

    def append_rounds(self, message_id: int, text: str, lines: Iterable[str]) -> None:
        """Append to a reply while it streams: text to its content, trace lines to its events."""
        with self._file.write() as db:
            change = "UPDATE messages SET content = content || ?, indexed = 0 WHERE id = ?"
            self._file.touch(db, f"message {message_id}", change, (storable(text), message_id))
            db.executemany(
                "INSERT INTO events (message_id, line) VALUES (?, ?)", [(message_id, storable(line)) for line in lines]
            )

    def finish_message(self, message_id: int, reason: str) -> None:
        """Mark a reply as complete."""
        change = "UPDATE messages SET finish_reason = ? WHERE id = ?"
        self._file.change(f"message {message_id}", change, (reason, message_id))

    def choose(self, message_id: int) -> None:
        """Of all messages with the same parent, continue the chat with this one."""
        own = "SELECT chat_id, role, parent FROM messages WHERE id = ?"
        siblings = "SELECT id FROM messages WHERE chat_id = ? AND role = ? AND parent IS ? AND chosen <> (id = ?)"
        with self._file.write() as db:
            for chat_id, role, parent in db.execute(own, (message_id,)).fetchall():
                changed = db.execute(siblings, (chat_id, role, parent, message_id)).fetchall()
                db.executemany(
                    "UPDATE messages SET chosen = (id = ?) WHERE id = ?", [(message_id, i) for (i,) in changed]
                )

    def set_parent(self, message_id: int, parent: int) -> None:
        """Let a prompt follow this reply: it was sent before the reply had begun."""
        self._file.change(f"message {message_id}", "UPDATE messages SET parent = ? WHERE id = ?", (parent, message_id))

    def fork_chat(self, message_ids: Sequence[int], title: str, system: str = "") -> Chat:
        """A new chat with copies of these messages, each of which follows the one before it."""
        copy = (
            "INSERT INTO messages (chat_id, role, content, created_at, finish_reason, model, parent)"
            " SELECT ?, role, content, created_at, finish_reason, model, ? FROM messages WHERE id = ?"
        )
        events = "INSERT INTO events (message_id, line) SELECT ?, line FROM events WHERE message_id = ? ORDER BY id"
        with self._file.write() as db:
            chat = self.create_chat(title, system)
            parent: int | None = None
            for message_id in message_ids:
                row = db.execute(copy, (chat.id, parent, message_id))
                if row.rowcount != 1:
                    raise StoreError(f"message {message_id} is not in {self.path}")
                parent = _row_id(row)
                db.execute(events, (parent, message_id))
                self.attachments.copy(message_id, parent)
        return chat

    def import_chats(self, chats: Sequence[ImportedChat]) -> None:
        """Add these chats, all or none of them."""
        with self._file.write():
            for imported in chats:
                chat = self.create_chat(imported.title, imported.system)
                rows: list[int] = []
                for message in imported.messages:
                    parent = None if message.parent is None else rows[message.parent]
                    row = self.add_message(
                        chat.id,
                        message.role,
                        "",
                        parent=parent,
                        chosen=message.chosen,
                        attachments=message.attachments,
                    )
                    self.append_rounds(row, message.text, message.lines)
                    if message.reason is not None:
                        self.finish_message(row, message.reason)
                    rows.append(row)

    def take_back(self, message_id: int) -> None:
        """Remove a prompt that nothing follows; one that has replies stays."""
        replies = "SELECT 1 FROM messages WHERE parent = ?"
        with self._file.write() as db:
            gone = db.execute(
                f"DELETE FROM messages WHERE id = ? AND role = 'user' AND NOT EXISTS ({replies})",
                (message_id, message_id),
            )
            if gone.rowcount:  # its id may be given again
                db.execute("DELETE FROM search WHERE rowid = ?", (message_id,))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; further calls raise `StoreError`."""
        self._file.close()
        self.unsent.close()

    def one_transaction(self) -> AbstractContextManager[object]:
        """Everything that the calling thread writes inside is stored together, or not at all."""
        return self._file.write()


def _row_id(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None  # after an INSERT there always is one
    return cursor.lastrowid
