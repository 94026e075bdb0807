"""What is typed and not yet sent, in every chat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specchat.app.chat.conversation import Conversation
from specchat.app.storage.attachments import Attachment

NO_CHAT = 0
"""Stands for the chat that has no prompt yet, and so no id."""
Attachments = tuple[Attachment, ...]
Unsent = tuple[str, Attachments]
"""A text, and what is attached to it."""


class UnsentTexts:
    """A text for each chat with its attachments, and which of them have changed since they were stored."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._stored: dict[int, str] = {}
        self._attachments: dict[int, Attachments] = {}
        self._stored_attachments: dict[int, Attachments] = {}
        self._last: tuple[Conversation, int] | None = None
        """The conversation whose text was kept last, and its chat then."""

    def fill(self, stored: Mapping[int, str], attachments: Mapping[int, Attachments]) -> None:
        """Take over what an earlier run stored, for the chats that nothing was typed in since."""
        self._stored, self._stored_attachments = dict(stored), dict(attachments)
        typed = {chat: text for chat, text in self._texts.items() if text}
        own = {chat: self._attachments.get(chat, ()) for chat in typed}
        self._texts, self._attachments = {**stored, **typed}, {**attachments, **own}

    def of(self, conversation: Conversation) -> str:
        """The text of this conversation."""
        return self._texts.get(_chat(conversation), "")

    def attachments_of(self, conversation: Conversation) -> Attachments:
        """What is attached to it."""
        return self._attachments.get(_chat(conversation), ())

    def keep(self, conversation: Conversation, text: str, attachments: Attachments = ()) -> None:
        """This is its text now; a conversation that gets a chat, with its first prompt, takes its text along."""
        chat = _chat(conversation)
        if self._last is not None and self._last[0] is conversation and self._last[1] != chat:
            self._texts[self._last[1]], self._attachments[self._last[1]] = "", ()
        self._last = conversation, chat
        self._texts[chat], self._attachments[chat] = text, attachments

    def changes(self) -> Iterator[tuple[int, str, Attachments | None]]:
        """Each chat whose text or attachments are not the stored ones; they count as stored from then on.

        Attachments that have not changed, which may be long, are None.
        """
        for chat, text in self._texts.items():
            attachments = self._attachments.get(chat, ())
            attached_else = self._stored_attachments.get(chat, ()) != attachments
            if attached_else or self._stored.get(chat, "") != text:
                self._stored[chat], self._stored_attachments[chat] = text, attachments
                yield chat, text, attachments if attached_else else None


def _chat(conversation: Conversation) -> int:
    return conversation.chat.id if conversation.chat else NO_CHAT
