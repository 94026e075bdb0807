"""Conversations with a running reply, a waiting prompt or an unread reply, and their signs in the list of chats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from specchat.app.chat.conversation import Conversation
from specchat.app.chat.reply import Stage
from specchat.app.storage.store import Chat


@dataclass(frozen=True, slots=True)
class Marks:
    """Ids of chats by their state."""

    answering: frozenset[int] = frozenset()
    waiting: frozenset[int] = frozenset()
    """A prompt was sent and no reply has started: the models are loading or every slot is in use."""
    news: frozenset[int] = frozenset()
    """A reply has ended since the chat was last shown."""

    def sign(self, chat_id: int) -> tuple[str, str]:
        """The sign before the title, two columns wide, and its style."""
        if chat_id in self.answering:
            return "● ", "busy"
        if chat_id in self.waiting:
            return "◌ ", "busy"
        return ("◆ ", "news") if chat_id in self.news else ("  ", "busy")

    def without(self, chat_id: int) -> Marks:
        """The marks of the other chats."""
        return Marks(*(frozenset(ids - {chat_id}) for ids in (self.answering, self.waiting, self.news)))


class ActiveConversations:
    """The conversations between their first prompt and the end of their last reply."""

    def __init__(self) -> None:
        self._busy: list[Conversation] = []
        self.unseen: set[Conversation] = set()
        """Conversations with a reply that has ended since they were last shown."""

    def __iter__(self) -> Iterator[Conversation]:
        return iter(list(self._busy))

    def watch(self, conversation: Conversation) -> None:
        """Add a conversation in which something was sent."""
        if conversation not in self._busy:
            self._busy.append(conversation)

    def of_chat(self, chat_id: int) -> Conversation | None:
        """The conversation of this chat if it has a running reply or a waiting prompt."""
        self._forget_idle()
        return next((c for c in self._busy if c.chat and c.chat.id == chat_id), None)

    def seen(self, chat: Chat) -> None:
        """Mark a chat as read."""
        self.unseen = {c for c in self.unseen if c.chat is None or c.chat.id != chat.id}

    @property
    def marks(self) -> Marks:
        """The states of all stored chats."""
        self._forget_idle()
        busy = {c.chat.id: c.busy for c in self._busy if c.chat}
        answering = {i for i, replies in busy.items() if any(r.stage is not Stage.WAITING for r in replies)}
        news = {c.chat.id for c in self.unseen if c.chat}
        return Marks(frozenset(answering), frozenset(busy.keys() - answering), frozenset(news))

    def _forget_idle(self) -> None:
        self._busy = [c for c in self._busy if c.busy or c.waiting]
