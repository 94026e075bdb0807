"""What is typed and not yet sent, in every chat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specchat.app.chat.conversation import Conversation

NO_CHAT = 0
"""Stands for the chat that has no prompt yet, and so no id."""


class UnsentTexts:
    """A text for each chat, and which of them have changed since they were stored."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._stored: dict[int, str] = {}
        self._last: tuple[Conversation, int] | None = None
        """The conversation whose text was kept last, and its chat then."""

    def fill(self, stored: Mapping[int, str]) -> None:
        """Take over what an earlier run stored, for the chats that nothing was typed in since."""
        self._stored = dict(stored)
        self._texts = {**stored, **{chat: text for chat, text in self._texts.items() if text}}

    def of(self, conversation: Conversation) -> str:
        """The text of this conversation."""
        return self._texts.get(_chat(conversation), "")

    def keep(self, conversation: Conversation, text: str) -> None:
        """This is its text now; a conversation that gets a chat, with its first prompt, takes its text along."""
        chat = _chat(conversation)
        if self._last is not None and self._last[0] is conversation and self._last[1] != chat:
            self._texts[self._last[1]] = ""
        self._last = conversation, chat
        self._texts[chat] = text

    def changes(self) -> Iterator[tuple[int, str]]:
        """Each chat whose text is not the stored one, and the text, which counts as stored from then on."""
        for chat, text in self._texts.items():
            if self._stored.get(chat, "") != text:
                self._stored[chat] = text
                yield chat, text


def _chat(conversation: Conversation) -> int:
    return conversation.chat.id if conversation.chat else NO_CHAT
