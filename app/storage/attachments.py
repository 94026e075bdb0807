"""Tables of the store: attachments of prompts (files and long pastes), and typed texts that are not sent yet.

Each running program has its own unsent text in every chat.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import TYPE_CHECKING, Any

from specchat.app.storage.database import StoreFile, storable
from specchat.engine import FILE_MODE

if TYPE_CHECKING:
    from filelock import BaseFileLock

FILE, PASTE = "file", "paste"
COLUMNS = "kind, name, text, tokens, path"
_INSERT = f"INSERT INTO attachments (message_id, draft_id, {COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"


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
        query = f"SELECT message_id, {COLUMNS} FROM attachments WHERE message_id IN ({own}) ORDER BY id"
        return _by_owner(self._file.read(query, (chat_id,)))

    def add(
        self, attachments: Sequence[Attachment], message_id: int | None = None, draft_id: int | None = None
    ) -> None:
        """Store the attachments of a new message, or of an unsent text."""
        rows = [
            (message_id, draft_id, one.kind, storable(one.name), storable(one.text), one.tokens, storable(one.path))
            for one in attachments
        ]
        with self._file.write() as db:
            db.executemany(_INSERT, rows)

    def set_tokens(self, message_id: int, name: str, tokens: int) -> None:
        """Store the number of tokens of an attachment."""
        query = "UPDATE attachments SET tokens = ? WHERE message_id = ? AND name = ?"
        with self._file.write() as db:
            db.execute(query, (tokens, message_id, storable(name)))

    def unsent(self) -> dict[int, tuple[Attachment, ...]]:
        """Attachments of unsent texts by the key of the text."""
        rows = self._file.read(f"SELECT draft_id - 1, {COLUMNS} FROM attachments WHERE draft_id NOT NULL ORDER BY id")
        return _by_owner(rows)

    def keep_unsent(self, key: int, attachments: Sequence[Attachment]) -> None:
        """Replace the attachments of an unsent text."""
        with self._file.write() as db:
            db.execute("DELETE FROM attachments WHERE draft_id = ?", (key + 1,))
            self.add(attachments, draft_id=key + 1)


def _by_owner(rows: Iterable[tuple[Any, ...]]) -> dict[int, tuple[Attachment, ...]]:
    owned: dict[int, tuple[Attachment, ...]] = {}
    for owner, *values in rows:
        owned[owner] = (*owned.get(owner, ()), Attachment(*values))
    return owned


_CHATS = 1 << 40
"""Greater than any chat id. The key of a text is PROGRAM * _CHATS + CHAT, or -PROGRAM in the chat that is not stored
yet. Its row id is the key plus one: row 1 has the only text of the earliest versions."""


class UnsentRows:
    """Texts and attachments by chat id; 0 is this program's chat that is not stored yet.

    A program has a number, which it holds by a lock on a file next to the store. Texts of programs that have ended are
    joined to this program's; a text of a running program is shown where this one has none.
    """

    def __init__(self, file: StoreFile, attachments: AttachmentRows) -> None:
        self._file, self._attachments = file, attachments
        self._own: tuple[int, BaseFileLock] | None = None
        """Number and lock of this program, from first use on."""

    def texts(self) -> dict[int, str]:
        """The texts. The first call takes over the texts of programs that have ended."""
        return {chat_id: text for chat_id, (_, text) in self._shown().items()}

    def attachments(self) -> dict[int, tuple[Attachment, ...]]:
        """The attachments of these texts."""
        attached = self._attachments.unsent()
        return {chat_id: attached[key] for chat_id, (key, _) in self._shown().items() if key in attached}

    def keep(self, chat_id: int, text: str, attachments: Sequence[Attachment] | None = None) -> None:
        """Store the text of a chat, or of 0. Without `attachments`, the stored ones stay."""
        number = self._number()
        key = number * _CHATS + chat_id if chat_id else -number
        with self._file.write():
            if attachments is None and self._shown().get(chat_id, (key, ""))[0] != key:
                attachments = self.attachments().get(chat_id)  # another program's, which keeps its own
            self._put(key, text, attachments)

    def close(self) -> None:
        """Release the number: another program may take over the texts."""
        with self._file.lock:
            if self._own is not None:
                self._own[1].release()

    def _shown(self) -> dict[int, tuple[int, str]]:
        """Key and text by chat id: this program's own, else another's."""
        own = self._number()
        shown: dict[int, tuple[int, str]] = {}
        for key, text in sorted(self._stored().items(), key=lambda row: _split(row[0])[0] != own):
            number, chat_id = _split(key)
            if chat_id or number == own:
                shown.setdefault(chat_id, (key, text))
        return shown

    def _stored(self) -> dict[int, str]:
        """Texts of all programs by key."""
        rows = self._file.read("SELECT id - 1, text FROM drafts WHERE text != '' ORDER BY id")
        return {int(key): str(text) for key, text in rows}

    def _put(self, key: int, text: str, attachments: Sequence[Attachment] | None) -> None:
        with self._file.write() as db:
            db.execute("INSERT OR REPLACE INTO drafts (id, text) VALUES (?, ?)", (key + 1, storable(text)))
            if attachments is not None:
                self._attachments.keep_unsent(key, attachments)

    def _number(self) -> int:
        """This program's number: preferably one with a text for the chat that is not stored yet, of an earlier run."""
        with self._file.lock, self._file.sentences():
            if self._own is None:
                left = {_split(key)[0] for key in (*self._stored(), *self._attachments.unsent()) if key <= 0}
                numbers = chain(sorted(left), (number for number in count() if number not in left))
                self._own = next((number, lock) for number in numbers if (lock := self._lock(number)) is not None)
                self._take_over(self._own[0])
            return self._own[0]

    def _lock(self, number: int) -> BaseFileLock | None:
        """The lock of a number, which ends with the program; None while another program holds it."""
        from filelock import FileLock, Timeout  # imported here to keep the start fast

        lock = FileLock(f"{self._file.path}.window-{number}", mode=FILE_MODE, thread_local=False)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            return None
        return lock

    def _take_over(self, own: int) -> None:
        """Join the texts of programs that have ended to this program's."""
        for other in {_split(key)[0] for key in self._stored() if key > 0} - {own}:
            if (lock := self._lock(other)) is not None:
                try:
                    self._join(other, own)
                finally:
                    lock.release()

    def _join(self, other: int, own: int) -> None:
        """Join the texts of another program to this one's.

        A text with an attachment of the same name but another content than this program's stays for a later start.
        """
        with self._file.write():
            texts, attached = self._stored(), self._attachments.unsent()
            for key, text in texts.items():
                number, chat_id = _split(key)
                if not chat_id or number != other:
                    continue
                to = own * _CHATS + chat_id
                before, theirs = texts.get(to, ""), attached.get(key, ())
                both = {one.name: one for one in (*theirs, *attached.get(to, ()))}
                if all(both[one.name].is_same(one) for one in theirs):
                    joined = text if text == before else "\n\n".join(filter(None, (before, text)))
                    self._put(to, joined, list(both.values()))
                    self._put(key, "", ())


def _split(key: int) -> tuple[int, int]:
    """Program and chat of a key."""
    return divmod(key, _CHATS) if key > 0 else (-key, 0)
