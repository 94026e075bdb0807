"""Typed texts that are not sent yet, in every chat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specchat.app.chat.conversation import Conversation
from specchat.app.storage.attachments import Attachment

NO_CHAT = 0
"""Id of the chat that has no prompt yet."""
Attachments = tuple[Attachment, ...]
Unsent = tuple[str, Attachments]
"""A text and its attachments."""
_NOTHING: Unsent = "", ()


class UnsentTexts:
    """A text with its attachments for each chat, and which of them have changed since they were stored."""

    def __init__(self) -> None:
        self._texts: dict[int, Unsent] = {}
        self._stored: dict[int, Unsent] = {}
        self._last: tuple[Conversation, int] | None = None
        """The conversation whose text was kept last, and its chat at that time."""

    def fill(self, stored: Mapping[int, str], attachments: Mapping[int, Attachments]) -> None:
        """Take over the texts of an earlier run, for chats without a new text."""
        self._stored = {chat: (stored.get(chat, ""), attachments.get(chat, ())) for chat in {*stored, *attachments}}
        self._texts = self._stored | {chat: unsent for chat, unsent in self._texts.items() if unsent[0]}

    def of(self, conversation: Conversation) -> str:
        """The text of a conversation."""
        return self._texts.get(_chat(conversation), _NOTHING)[0]

    def attachments_of(self, conversation: Conversation) -> Attachments:
        """The attachments of its text."""
        return self._texts.get(_chat(conversation), _NOTHING)[1]

    def keep(self, conversation: Conversation, text: str, attachments: Attachments = ()) -> None:
        """Set the text of a conversation; it moves along when the conversation gets a chat with its first prompt."""
        chat = _chat(conversation)
        if self._last is not None and self._last[0] is conversation and self._last[1] != chat:
            self._texts[self._last[1]] = _NOTHING
        self._last = conversation, chat
        self._texts[chat] = text, attachments

    def changes(self) -> Iterator[tuple[int, str, Attachments | None]]:
        """Chats whose text or attachments have changed, which then count as stored.

        Attachments, which may be long, are None if they have not changed.
        """
        for chat, unsent in self._texts.items():
            stored = self._stored.get(chat, _NOTHING)
            if unsent != stored:
                self._stored[chat] = unsent
                yield chat, unsent[0], unsent[1] if unsent[1] != stored[1] else None


def _chat(conversation: Conversation) -> int:
    return conversation.chat.id if conversation.chat else NO_CHAT
