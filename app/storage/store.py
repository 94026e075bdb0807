"""The chats on disk: one SQLite file, shared by every specchat that runs.

Replies are stored while they stream (`append_rounds`), each round before it is shown (`app.chat.request_manager`). A
reply without a finish reason in a reopened file was interrupted. Write-ahead logging lets two programs read and write
at once.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from specchat.app.errors import StoreError
from specchat.app.storage.aside import move_aside
from specchat.app.storage.attachment import PASTE, Attachment
from specchat.app.storage.attachment_rows import AttachmentRows
from specchat.app.storage.database import BUSY_S, COMPANIONS, FOUND_DAMAGED, UnreadableError, open_database
from specchat.app.storage.imported import ImportedChat
from specchat.app.storage.search_index import SearchIndex
from specchat.app.storage.window_slot import WindowSlot
from specchat.engine import make_folder, make_private

T = TypeVar("T")


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
        self.notice: str | None = None
        self._now = now
        self._lock = threading.RLock()
        self._slot: WindowSlot | None = None
        """Which of the programs on this file this is, once that is asked."""
        self.search = SearchIndex(self._read, self._write, now)
        self.attachments = AttachmentRows(self._read, self._write, _storable)
        with self._sentences():
            make_folder(path.parent)
            make_private(path.parent)
            try:
                self._db = open_database(path)
            except UnreadableError as error:
                aside = move_aside(path, COMPANIONS)
                self.notice = f"{path} {error}: it was kept as {aside.name} and a new list of chats was started"
                self._db = open_database(path)

    def chats(self) -> list[Chat]:
        """All chats that are not deleted: the pinned ones, then the others, newest first."""
        rows = self._read(
            "SELECT id, title, updated_at, pinned, system, thinking FROM chats WHERE deleted_at IS NULL"
            " ORDER BY pinned DESC, updated_at DESC, id DESC"
        )
        return [
            Chat(row_id, title, at, bool(pinned), system, None if thinking is None else bool(thinking))
            for row_id, title, at, pinned, system, thinking in rows
        ]

    def create_chat(self, title: str = "", system: str = "") -> Chat:
        """A new, empty chat."""
        at, title, system = self._now(), _storable(title), _storable(system)
        with self._write() as db:
            row = db.execute("INSERT INTO chats (title, updated_at, system) VALUES (?, ?, ?)", (title, at, system))
        return Chat(_row_id(row), title, at, system=system)

    def pin_chat(self, chat_id: int, pinned: bool) -> None:
        """Let a chat stand above those that are not pinned, or among them again."""
        self._change(f"chat {chat_id}", "UPDATE chats SET pinned = ? WHERE id = ?", (pinned, chat_id))

    def set_system(self, chat_id: int, system: str) -> None:
        """Change the instructions to the model."""
        self._change(f"chat {chat_id}", "UPDATE chats SET system = ? WHERE id = ?", (_storable(system), chat_id))

    def set_thinking(self, chat_id: int, thinking: bool | None) -> None:
        """Change whether the model thinks."""
        self._change(f"chat {chat_id}", "UPDATE chats SET thinking = ? WHERE id = ?", (thinking, chat_id))

    def prompts(self, at_most: int) -> list[str]:
        """The newest different prompts of all chats, oldest of them first; none that lacks a paste elsewhere."""
        rows = self._read(
            "SELECT content, max(id) AS newest FROM (SELECT m.id, m.content FROM messages m JOIN chats c"
            " ON c.id = m.chat_id WHERE m.role = 'user' AND c.deleted_at IS NULL AND NOT EXISTS"
            " (SELECT 1 FROM attachments a WHERE a.message_id = m.id AND a.kind = ?) ORDER BY m.id DESC LIMIT ?)"
            " GROUP BY content ORDER BY newest",
            (PASTE, at_most),
        )
        return [content for content, _ in rows]

    def models(self) -> list[str]:
        """What replies came from, the one that answered last first."""
        rows = self._read("SELECT model FROM messages WHERE model != '' GROUP BY model ORDER BY max(id) DESC")
        return [str(model) for (model,) in rows]

    def rename_chat(self, chat_id: int, title: str) -> None:
        """Change the title; the place in the list stays."""
        self._change(
            f"chat {chat_id}", "UPDATE chats SET title = ?, indexed = 0 WHERE id = ?", (_storable(title), chat_id)
        )

    def delete_chat(self, chat_id: int) -> None:
        """Take the chat off the list; `restore_chat` brings it back."""
        self._change(f"chat {chat_id}", "UPDATE chats SET deleted_at = ? WHERE id = ?", (self._now(), chat_id))

    def restore_chat(self, chat_id: int) -> None:
        """Undo `delete_chat`."""
        self._change(f"chat {chat_id}", "UPDATE chats SET deleted_at = NULL WHERE id = ?", (chat_id,))

    def events(self, message_id: int) -> tuple[str, ...]:
        """The trace lines of a reply, in order."""
        return tuple(
            line for (line,) in self._read("SELECT line FROM events WHERE message_id = ? ORDER BY id", (message_id,))
        )

    def messages(self, chat_id: int, *, events: bool = True) -> list[StoredMessage]:
        """The messages of a chat, oldest first; without their trace lines where these are not wanted."""
        with self._lock:
            rows = self._read(
                "SELECT id, role, content, created_at, finish_reason, parent, chosen, model FROM messages"
                " WHERE chat_id = ? ORDER BY id",
                (chat_id,),
            )
            own = "SELECT id FROM messages WHERE chat_id = ?"
            query = f"SELECT message_id, line FROM events WHERE message_id IN ({own}) ORDER BY id"
            lines = self._read(query, (chat_id,)) if events else []
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
        with self._write() as db:
            self._touch(db, f"chat {chat_id}", "UPDATE chats SET updated_at = ? WHERE id = ?", (at, chat_id))
            row = db.execute(
                "INSERT INTO messages (chat_id, role, content, created_at, parent, chosen, model)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (chat_id, role, _storable(content), at, parent, chosen, _storable(model)),
            )
            if chosen:
                self.choose(_row_id(row))
            if attachments:
                self.attachments.add(_row_id(row), attachments)
        return _row_id(row)

    def append_rounds(self, message_id: int, text: str, lines: Iterable[str]) -> None:
        """Append to a reply while it streams: text to its content, trace lines to its events."""
        with self._write() as db:
            change = "UPDATE messages SET content = content || ?, indexed = 0 WHERE id = ?"
            self._touch(db, f"message {message_id}", change, (_storable(text), message_id))
            db.executemany(
                "INSERT INTO events (message_id, line) VALUES (?, ?)", [(message_id, _storable(line)) for line in lines]
            )

    def finish_message(self, message_id: int, reason: str) -> None:
        """Mark a reply as complete."""
        change = "UPDATE messages SET finish_reason = ? WHERE id = ?"
        self._change(f"message {message_id}", change, (reason, message_id))

    def choose(self, message_id: int) -> None:
        """Of all messages with the same parent, continue the chat with this one."""
        own = "SELECT chat_id, role, parent FROM messages WHERE id = ?"
        siblings = "SELECT id FROM messages WHERE chat_id = ? AND role = ? AND parent IS ? AND chosen <> (id = ?)"
        with self._write() as db:
            for chat_id, role, parent in db.execute(own, (message_id,)).fetchall():
                changed = db.execute(siblings, (chat_id, role, parent, message_id)).fetchall()
                db.executemany(
                    "UPDATE messages SET chosen = (id = ?) WHERE id = ?", [(message_id, i) for (i,) in changed]
                )

    def set_parent(self, message_id: int, parent: int) -> None:
        """Let a prompt follow this reply: it was sent before the reply had begun."""
        self._change(f"message {message_id}", "UPDATE messages SET parent = ? WHERE id = ?", (parent, message_id))

    def fork_chat(self, message_ids: Sequence[int], title: str, system: str = "") -> Chat:
        """A new chat with copies of these messages, each of which follows the one before it."""
        copy = (
            "INSERT INTO messages (chat_id, role, content, created_at, finish_reason, model, parent)"
            " SELECT ?, role, content, created_at, finish_reason, model, ? FROM messages WHERE id = ?"
        )
        events = "INSERT INTO events (message_id, line) SELECT ?, line FROM events WHERE message_id = ? ORDER BY id"
        with self._write() as db:
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
        with self._write():
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
        with self._write() as db:
            gone = db.execute(
                f"DELETE FROM messages WHERE id = ? AND role = 'user' AND NOT EXISTS ({replies})",
                (message_id, message_id),
            )
            if gone.rowcount:  # its id may be given again
                db.execute("DELETE FROM search WHERE rowid = ?", (message_id,))

    def unsent(self) -> dict[int, str]:
        """What was typed and not sent, by the chat's id; 0 is the chat of this program that is not stored yet.

        The first call takes over the text of such a chat from a program that has ended.
        """
        rows = self._read("SELECT id, text FROM drafts WHERE text != ''")
        return self._own({row_id - 1: str(text) for row_id, text in rows})

    def unsent_attachments(self) -> dict[int, tuple[Attachment, ...]]:
        """What is attached to it, by the same ids."""
        return self._own(self.attachments.unsent())

    def keep_unsent(self, chat_id: int, text: str, attachments: Sequence[Attachment] | None = None) -> None:
        """Store what is typed and not sent in a chat, or 0; attachments only where they are given."""
        key = chat_id or self._window_key()
        with self._write() as db:  # earlier versions keep one text for all chats, in row 1
            db.execute("INSERT OR REPLACE INTO drafts (id, text) VALUES (?, ?)", (key + 1, _storable(text)))
            if attachments is not None:
                self.attachments.keep_unsent(key, attachments)

    def _own(self, unsent: dict[int, T]) -> dict[int, T]:
        """Of what is kept for each chat, or for a program whose chat is not stored yet, what this program shows."""
        key = self._window_key()
        return {chat_id: kept for chat_id, kept in unsent.items() if chat_id > 0} | (
            {0: unsent[key]} if key in unsent else {}
        )

    def _window_key(self) -> int:
        """What stands for this program's chat that is not stored yet: 0 or less."""
        with self._lock, self._sentences():
            if self._slot is None:
                kept = self._read("SELECT id - 1 FROM drafts WHERE text != '' AND id <= 1")
                kept += self._read("SELECT draft_id - 1 FROM attachments WHERE draft_id <= 1")
                self._slot = WindowSlot(self.path, {-int(key) for (key,) in kept})
        return -self._slot.number

    def close(self) -> None:
        """Close the file; further calls raise `StoreError`."""
        with self._lock:
            self._db.close()
            if self._slot is not None:
                self._slot.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _read(self, query: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        with self._lock, self._sentences():
            return self._db.execute(query, values).fetchall()

    def _change(self, what: str, statement: str, values: tuple[object, ...]) -> None:
        with self._write() as db:
            self._touch(db, what, statement, values)

    def _touch(self, db: sqlite3.Connection, what: str, statement: str, values: tuple[object, ...]) -> None:
        if db.execute(statement, values).rowcount != 1:
            raise StoreError(f"{what} is not in {self.path}")

    @contextmanager
    def one_transaction(self) -> Iterator[None]:
        """Everything that the calling thread writes inside is stored together, or not at all."""
        with self._write():
            yield

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._sentences():
            if self._db.in_transaction:  # of this thread, which has the lock
                yield self._db
                return
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite has rolled back by itself after some errors, such as a full disk
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(f"chats are not stored: {self.path}: {error.strerror or error}") from error
        except UnreadableError as error:
            raise StoreError(f"chats are not stored: {self.path} {error}") from error
        except UnicodeError as error:
            raise StoreError(f"chats are not stored: {self.path} is damaged") from error
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CORRUPT:
                with suppress(OSError):
                    Path(f"{self.path}{FOUND_DAMAGED}").touch()
            raise StoreError(f"chats are not stored: {_reason(error, self.path)}") from error


def _reason(error: sqlite3.Error, path: Path) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the kind, the rest a refinement
    match code:
        case sqlite3.SQLITE_FULL:
            return f"the disk that holds {path} is full"
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return f"{path} cannot be opened for writing, check its permissions and those of its folder"
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return f"{path} has been locked by another program for {BUSY_S:g} s"
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return f"{path} is damaged, restart specchat to move it aside"
    return f"{path}: {error}"


def _row_id(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None  # after an INSERT there always is one
    return cursor.lastrowid


def _storable(text: str) -> str:
    """SQLite stores UTF-8, which has no half characters: they become the replacement character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
