"""What is typed and not sent, in the store: of each chat, and of each program whose chat is not stored yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from specchat.app.storage.attachment import Attachment
from specchat.app.storage.attachment_rows import AttachmentRows
from specchat.app.storage.store_file import StoreFile, storable
from specchat.app.storage.window_slot import WindowSlot

T = TypeVar("T")


class UnsentRows:
    """Texts and attachments by the chat's id; 0 is the chat of this program that is not stored yet."""

    def __init__(self, file: StoreFile, attachments: AttachmentRows) -> None:
        self._file = file
        self._attachments = attachments
        self._slot: WindowSlot | None = None
        """Which of the programs on this file this is, once that is asked."""

    def texts(self) -> dict[int, str]:
        """The texts. The first call takes over that of an unstored chat from a program that has ended."""
        rows = self._file.read("SELECT id, text FROM drafts WHERE text != ''")
        return self._own({row_id - 1: str(text) for row_id, text in rows})

    def attachments(self) -> dict[int, tuple[Attachment, ...]]:
        """What is attached to them."""
        return self._own(self._attachments.unsent())

    def keep(self, chat_id: int, text: str, attachments: Sequence[Attachment] | None = None) -> None:
        """Store what is typed in a chat, or 0; attachments only where they are given."""
        key = chat_id or self._window_key()
        with self._file.write() as db:  # earlier versions keep one text for all chats, in row 1
            db.execute("INSERT OR REPLACE INTO drafts (id, text) VALUES (?, ?)", (key + 1, storable(text)))
            if attachments is not None:
                self._attachments.keep_unsent(key, attachments)

    def close(self) -> None:
        """Let another program take over what this one has typed."""
        with self._file.lock:
            if self._slot is not None:
                self._slot.release()

    def _own(self, unsent: dict[int, T]) -> dict[int, T]:
        """Of what is kept for each chat, or for a program whose chat is not stored yet, what this program shows."""
        key = self._window_key()
        return {chat_id: kept for chat_id, kept in unsent.items() if chat_id > 0} | (
            {0: unsent[key]} if key in unsent else {}
        )

    def _window_key(self) -> int:
        """What stands for this program's chat that is not stored yet: 0 or less."""
        with self._file.lock, self._file.sentences():
            if self._slot is None:
                kept = self._file.read("SELECT id - 1 FROM drafts WHERE text != '' AND id <= 1")
                kept += self._file.read("SELECT draft_id - 1 FROM attachments WHERE draft_id <= 1")
                self._slot = WindowSlot(self._file.path, {-int(key) for (key,) in kept})
        return -self._slot.number
