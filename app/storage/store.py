"""The chats on disk: one SQLite file, shared by every running specchat.

Replies are stored while they stream (`append_rounds`), each round before it is shown (`app.chat.delivery`). A reply
without a finish reason in a reopened file was interrupted. Write-ahead logging lets several programs read and write.
"""

import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from uuid import uuid4

from specchat.app.errors import StoreError
from specchat.app.paths import kept_folder
from specchat.app.storage.attachments import COLUMNS, PASTE, Attachment, AttachmentRows, UnsentRows
from specchat.app.storage.database import StoreFile, storable, text_in
from specchat.app.storage.replies import FinishedReplies
from specchat.app.storage.search_index import SearchIndex
from specchat.engine import MessagePart, PartKind, message_parts, text_of

_THINKING = {None: None, 0: False, 1: True}
"""Values of `Chat.thinking` by how they are stored; others are words, or numbers that stand for words."""
_KINDS = {kind.value: kind for kind in PartKind}


@dataclass(frozen=True, slots=True)
class Chat:
    """One entry of the list of chats. `updated_at` is seconds since 1970."""

    id: int
    title: str
    updated_at: float
    pinned: bool = False
    """Whether it is listed above the others."""
    system: str = ""
    """System prompt."""
    thinking: bool | str | None = None
    """Value of the template's thinking switch; None follows the settings."""
    news: bool = False
    """Whether a reply has ended since the chat was last shown."""
    uid: str = field(default="", compare=False)
    """Identity in exports and imports, also in other programs' files."""
    servers: tuple[str, ...] = ()
    """Names of the MCP servers that are on."""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A prompt or a reply."""

    id: int
    role: str
    parts: tuple[MessagePart, ...]
    """Its text, thinking, calls of tools and their results, in order."""
    finish_reason: str | None = None
    """Why the reply ended; None for a prompt, and for a reply that was interrupted or is still running."""
    parent: int | None = None
    """The message that it follows: a reply its prompt, a prompt the reply before it (or the prompt before it while that
    has no reply); None for a first prompt."""
    chosen: bool = True
    """Whether the chat continues with this one among the messages with the same parent."""
    model: str = ""
    """The model of a reply, as named in the settings; empty if unknown."""
    events: tuple[str, ...] = ()
    """Trace lines (`engine.to_json`) of the reply, in order; none if its tokens are unknown."""
    attachments: tuple[Attachment, ...] = ()

    @property
    def content(self) -> str:
        """Its text without the thinking."""
        return text_of(self.parts, PartKind.TEXT)

    @property
    def thinking(self) -> str:
        """What a reply thought."""
        return text_of(self.parts, PartKind.THINKING)


class Store:
    """The chats in one file. Every method may be called from any thread and takes a few milliseconds.

    A file that cannot be read is moved aside, never overwritten, and a new one is started; `notice` then has a sentence
    about it.

    Raises:
        StoreError: the file cannot be opened, read or written (no permission, full disk, unknown chat). Any method
            raises it; what was stored before stays.
    """

    def __init__(self, path: Path, now: Callable[[], float] = time.time) -> None:
        self.path, self._now = path, now
        self._file = file = StoreFile(path)
        self.notice = file.notice
        """A sentence about what had to be done to open the file; None without one."""
        self.one_transaction = file.write
        """A context that stores everything that the calling thread writes inside together, or nothing of it."""
        self.search = SearchIndex(file, now)
        self.replies = FinishedReplies(file)
        self.attachments = AttachmentRows(file)
        self.unsent = UnsentRows(file, self.attachments)

    def chats(self) -> list[Chat]:
        """All chats that are not deleted: pinned ones, then the others, newest first."""
        return self._chats("deleted_at IS NULL ORDER BY pinned DESC, updated_at DESC, id DESC")

    def chat_of(self, uid: str) -> Chat | None:
        """The chat with this identity, if it is not deleted."""
        return next(iter(self._chats("uid = ? AND deleted_at IS NULL ORDER BY id", uid)), None)

    def _chats(self, condition: str, *values: object) -> list[Chat]:
        columns = "id, title, updated_at, pinned, system, thinking, news, uid, servers"
        rows = self._file.read(f"SELECT {columns} FROM chats WHERE {condition}", values)
        return [
            Chat(
                *(row, title, at, bool(pinned), system, _THINKING.get(thinking, str(thinking)), bool(news), uid),
                servers=tuple(filter(None, servers.split("\n"))),
            )
            for row, title, at, pinned, system, thinking, news, uid, servers in rows
        ]

    def create_chat(self, title: str = "", system: str = "", uid: str = "") -> Chat:
        """Add an empty chat."""
        at, title, system, uid = self._now(), storable(title), storable(system), storable(uid) or uuid4().hex
        insert = "INSERT INTO chats (title, updated_at, system, uid) VALUES (?, ?, ?, ?)"
        with self._file.write() as db:
            row = db.execute(insert, (title, at, system, uid))
        return Chat(_row_id(row), title, at, system=system, uid=uid)

    def change_chat(self, chat_id: int, **values: object) -> None:
        """Change columns of a chat (`title`, `pinned` …), or whether it is `deleted` from the list."""
        changes = {name: storable(value) if isinstance(value, str) else value for name, value in values.items()}
        if "title" in changes:
            changes["indexed"] = 0
        if "deleted" in changes:
            changes["deleted_at"] = self._now() if changes.pop("deleted") else None
        names = ", ".join(f"{name} = ?" for name in changes)
        self._file.change(f"chat {chat_id}", f"UPDATE chats SET {names} WHERE id = ?", (*changes.values(), chat_id))
        if changes.get("deleted_at"):
            for file in kept_folder(self.path).glob(f"*/{chat_id}.*"):
                file.unlink(missing_ok=True)

    def prompts(self, at_most: int) -> list[str]:
        """The newest different prompts of all chats, oldest first, except results and prompts that refer to a paste."""
        rows = self._file.read(
            f"SELECT content, max(id) AS newest FROM (SELECT m.id, {text_in('m.id')} AS content FROM messages m"
            " JOIN chats c ON c.id = m.chat_id WHERE m.role = 'user' AND c.deleted_at IS NULL AND NOT EXISTS"
            " (SELECT 1 FROM parts p WHERE p.message_id = m.id AND p.kind = 'tool_result') AND NOT EXISTS"
            " (SELECT 1 FROM attachments a WHERE a.message_id = m.id AND a.kind = ?) ORDER BY m.id DESC LIMIT ?)"
            " GROUP BY content ORDER BY newest",
            (PASTE, at_most),
        )
        return [content for content, _ in rows]

    def models(self) -> list[str]:
        """The models of all replies, last used first."""
        rows = self._file.read("SELECT model FROM messages WHERE model != '' GROUP BY model ORDER BY max(id) DESC")
        return [str(model) for (model,) in rows]

    def events(self, message_id: int) -> tuple[str, ...]:
        """The trace lines of a reply, in order."""
        rows = self._file.read("SELECT line FROM events WHERE message_id = ? ORDER BY id", (message_id,))
        return tuple(line for (line,) in rows)

    def messages(self, chat_id: int, *, events: bool = True) -> list[StoredMessage]:
        """The messages of a chat, oldest first, with or without their trace lines."""
        columns = "id, role, finish_reason, parent, chosen, model"
        own = "WHERE message_id IN (SELECT id FROM messages WHERE chat_id = ?) ORDER BY id"
        lines: dict[int, list[str]] = defaultdict(list)
        parts: dict[int, list[MessagePart]] = defaultdict(list)
        with self._file.lock:
            rows = self._file.read(f"SELECT {columns} FROM messages WHERE chat_id = ? ORDER BY id", (chat_id,))
            said = self._file.read(f"SELECT message_id, kind, text, name, call_id FROM parts {own}", (chat_id,))
            for row, kind, text, name, call_id in said:
                parts[row].append(MessagePart(_KINDS.get(kind, PartKind.TEXT), text, name, call_id))
            for row, line in (
                self._file.read(f"SELECT message_id, line FROM events {own}", (chat_id,)) if events else ()
            ):
                lines[row].append(line)
            attached = self.attachments.of_chat(chat_id)
        return [
            StoredMessage(
                *(row, role, tuple(parts[row]), end, parent, bool(chosen), model),
                events=tuple(lines[row]),
                attachments=attached.get(row, ()),
            )
            for row, role, end, parent, chosen, model in rows
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
        results: Iterable[MessagePart] = (),
    ) -> int:
        """Append a message (a reply: before its first token) and return its id. The chat becomes the newest.

        A chosen message replaces the choice among the messages with the same parent. A parent that another program has
        removed is replaced by the chat's last message.
        """
        at = self._now()
        existing = "SELECT id FROM messages WHERE id = ? AND chat_id = ?"
        last = "SELECT max(id) FROM messages WHERE chat_id = ?"
        with self._file.write() as db:
            self.change_chat(chat_id, updated_at=at)
            if parent is not None:
                found = db.execute(f"SELECT coalesce(({existing}), ({last}))", (parent, chat_id, chat_id))
                parent = found.fetchone()[0]
            row = db.execute(
                "INSERT INTO messages (chat_id, role, created_at, parent, chosen, model) VALUES (?, ?, ?, ?, ?, ?)",
                (chat_id, role, at, parent, chosen, storable(model)),
            )
            self._append_parts(_row_id(row), (*results, *message_parts(content)))
            if chosen:
                self.choose(_row_id(row))
            self.attachments.add(attachments, _row_id(row))
        return _row_id(row)

    def append_rounds(self, message_id: int, parts: Iterable[MessagePart], lines: Iterable[str]) -> None:
        """Append what a reply says to its parts, and trace lines to its events."""
        events = [(message_id, storable(line)) for line in lines]
        with self._file.write() as db:
            rows = db.execute("SELECT indexed FROM messages WHERE id = ?", (message_id,)).fetchall()
            if rows != [(0,)]:  # also if there is no such message, which is the error then
                self._set_in_message(message_id, "indexed = ?", 0)
            self._append_parts(message_id, parts)
            db.executemany("INSERT INTO events (message_id, line) VALUES (?, ?)", events)

    def _append_parts(self, message_id: int, parts: Iterable[MessagePart]) -> None:
        """Append parts to a message; a text of the same kind as its last part continues that."""
        last = "SELECT max(id) FROM parts WHERE message_id = ?"
        with self._file.write() as db:
            for part in parts:
                text = storable(part.text)
                continued = f"UPDATE parts SET text = text || ? WHERE kind = ? AND name = '' AND id = ({last})"
                if part.name or not db.execute(continued, (text, part.kind, message_id)).rowcount:
                    new = "INSERT INTO parts (message_id, kind, text, name, call_id) VALUES (?, ?, ?, ?, ?)"
                    db.execute(new, (message_id, part.kind, text, storable(part.name), storable(part.call_id)))

    def finish_message(self, message_id: int, reason: str) -> None:
        """Mark a reply as ended."""
        self._set_in_message(message_id, "finish_reason = ?", reason)

    def set_parent(self, message_id: int, parent: int) -> None:
        """Move a prompt, sent before the reply had started, after this reply, if it is still in the chat."""
        other = "SELECT p.id FROM messages p WHERE p.id = ? AND p.id <> messages.id AND p.chat_id = messages.chat_id"
        self._set_in_message(message_id, f"parent = coalesce(({other}), parent)", parent)

    def choose(self, message_id: int) -> None:
        """Continue the chat with this message among the messages with the same parent."""
        own = "SELECT chat_id, role, parent FROM messages WHERE id = ?"
        siblings = "SELECT id FROM messages WHERE chat_id = ? AND role = ? AND parent IS ? AND chosen <> (id = ?)"
        change = "UPDATE messages SET chosen = (id = ?) WHERE id = ?"
        with self._file.write() as db:
            for chat_id, role, parent in db.execute(own, (message_id,)).fetchall():
                changed = db.execute(siblings, (chat_id, role, parent, message_id)).fetchall()
                db.executemany(change, [(message_id, other) for (other,) in changed])

    def fork_chat(self, message_ids: Sequence[int], title: str) -> Chat:
        """Add a chat with copies of these messages, each following the one before it."""
        columns = "role, created_at, finish_reason, model"
        copy = f"INSERT INTO messages (chat_id, parent, {columns}) SELECT ?, ?, {columns} FROM messages WHERE id = ?"
        rows = "INSERT INTO {0} (message_id, {1}) SELECT ?, {1} FROM {0} WHERE message_id = ? ORDER BY id"
        with self._file.write() as db:
            chat = self.create_chat(title)
            parent: int | None = None
            for message_id in message_ids:
                row = db.execute(copy, (chat.id, parent, message_id))
                if row.rowcount != 1:
                    raise StoreError(f"message {message_id} is not in {self.path}")
                parent = _row_id(row)
                for table, copied in (
                    ("parts", "kind, text, name, call_id"),
                    ("events", "line"),
                    ("attachments", COLUMNS),
                ):
                    db.execute(rows.format(table, copied), (parent, message_id))
        return chat

    def take_back(self, message_id: int) -> None:
        """Remove a prompt without replies, or whose replies failed before their first token; others stay."""
        failed = "SELECT id FROM messages WHERE parent = ? AND finish_reason = 'error'"
        failed += " AND id NOT IN (SELECT message_id FROM parts WHERE text != '')"
        unanswered = "role = 'user' AND NOT EXISTS (SELECT 1 FROM messages WHERE parent = ?)"
        with self._file.write() as db:
            for row in db.execute(failed, (message_id,)).fetchall():
                for place in ("events WHERE message_id", "search WHERE rowid", "messages WHERE id"):
                    db.execute(f"DELETE FROM {place} = ?", row)
            removed = db.execute(f"DELETE FROM messages WHERE id = ? AND {unanswered}", (message_id, message_id))
            if removed.rowcount:  # SQLite may reuse the id
                db.execute("DELETE FROM search WHERE rowid = ?", (message_id,))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; further calls raise `StoreError`."""
        self._file.close()
        self.unsent.close()

    def _set_in_message(self, message_id: int, assignment: str, *values: object) -> None:
        change = f"UPDATE messages SET {assignment} WHERE id = ?"
        self._file.change(f"message {message_id}", change, (*values, message_id))


def _row_id(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None  # set after every INSERT
    return cursor.lastrowid
