"""What is typed and not sent, in the store: each program has a text of its own in every chat."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.app.storage.attachment import Attachment
from specchat.app.storage.attachment_rows import AttachmentRows
from specchat.app.storage.store_file import StoreFile, storable
from specchat.app.storage.window_slot import WindowSlot, while_free

_CHATS = 1 << 40
"""More than there are. The key of a text in a chat is its program's number times this, plus the chat's id; in the chat
that is not stored yet, minus the number. Its row is one more, as row 1 has the one text of the earliest versions."""


class UnsentRows:
    """Texts and attachments by the chat's id; 0 is the chat of this program that is not stored yet.

    What programs that have ended left in a chat joins what this one has there; what others that run have in it is shown
    where this one has nothing.
    """

    def __init__(self, file: StoreFile, attachments: AttachmentRows) -> None:
        self._file = file
        self._attachments = attachments
        self._slot: WindowSlot | None = None
        """Which of the programs on this file this is, once that is asked."""

    def texts(self) -> dict[int, str]:
        """The texts. The first call takes over those of programs that have ended."""
        return {chat_id: text for chat_id, (_, text) in self._shown().items()}

    def attachments(self) -> dict[int, tuple[Attachment, ...]]:
        """What is attached to them."""
        attached = self._attachments.unsent()
        return {chat_id: attached[key] for chat_id, (key, _) in self._shown().items() if key in attached}

    def keep(self, chat_id: int, text: str, attachments: Sequence[Attachment] | None = None) -> None:
        """Store what is typed in a chat, or 0; attachments that are not given are those that are shown there."""
        number = self._number()
        key = number * _CHATS + chat_id if chat_id else -number
        with self._file.write():
            if attachments is None and self._shown().get(chat_id, (key, ""))[0] != key:
                attachments = self.attachments().get(chat_id)  # of another program, which keeps its own
            self._put(key, text, attachments)

    def close(self) -> None:
        """Let another program take over what this one has typed."""
        with self._file.lock:
            if self._slot is not None:
                self._slot.release()

    def _shown(self) -> dict[int, tuple[int, str]]:
        """Key and text of what this program shows in each chat."""
        own = self._number()
        shown: dict[int, tuple[int, str]] = {}
        for key, text in sorted(self._kept().items(), key=lambda row: _place(row[0])[0] != own):
            number, chat_id = _place(key)
            if chat_id or number == own:
                shown.setdefault(chat_id, (key, text))
        return shown

    def _kept(self) -> dict[int, str]:
        """All texts by their keys."""
        rows = self._file.read("SELECT id - 1, text FROM drafts WHERE text != '' ORDER BY id")
        return {int(key): str(text) for key, text in rows}

    def _put(self, key: int, text: str, attachments: Sequence[Attachment] | None) -> None:
        with self._file.write() as db:
            db.execute("INSERT OR REPLACE INTO drafts (id, text) VALUES (?, ?)", (key + 1, storable(text)))
            if attachments is not None:
                self._attachments.keep_unsent(key, attachments)

    def _number(self) -> int:
        """This program's number."""
        with self._file.lock, self._file.sentences():
            if self._slot is None:
                unstored = {_place(key)[0] for key in (*self._kept(), *self._attachments.unsent()) if key <= 0}
                self._slot = WindowSlot(self._file.path, unstored)
                self._take_over(self._slot.number)
            return self._slot.number

    def _take_over(self, own: int) -> None:
        """Join what programs that have ended left in chats to what this one has there."""
        for other in {_place(key)[0] for key in self._kept() if key > 0} - {own}:
            with while_free(self._file.path, other) as ended:
                if ended:
                    self._join(other, own)

    def _join(self, other: int, own: int) -> None:
        """Join the texts of another program in chats to this one's.

        A text of which an attachment has a name that this one's has too, and is another, waits until that is sent.
        """
        with self._file.write():
            texts, attached = self._kept(), self._attachments.unsent()
            for key, text in texts.items():
                number, chat_id = _place(key)
                if not chat_id or number != other:
                    continue
                to = own * _CHATS + chat_id
                before, theirs = texts.get(to, ""), attached.get(key, ())
                both = {one.name: one for one in (*theirs, *attached.get(to, ()))}
                if all(both[one.name].is_same(one) for one in theirs):
                    joined = text if text == before else "\n\n".join(filter(None, (before, text)))
                    self._put(to, joined, list(both.values()))
                    self._put(key, "", ())


def _place(key: int) -> tuple[int, int]:
    """Program and chat of a key."""
    return divmod(key, _CHATS) if key > 0 else (-key, 0)
