"""Conversations that something happens in: a reply runs, a prompt waits, or an answer has not been read."""

from __future__ import annotations

from collections.abc import Iterator

from specchat.app.chat.conversation import Conversation
from specchat.app.chat.marks import Marks
from specchat.app.chat.reply import Stage
from specchat.app.storage.store import Chat


class ActiveConversations:
    """Knows them from their first prompt until their last reply has ended."""

    def __init__(self) -> None:
        self._busy: list[Conversation] = []
        self.unseen: set[Conversation] = set()
        """Those with a reply that has ended since they were last shown."""

    def __iter__(self) -> Iterator[Conversation]:
        return iter(list(self._busy))

    def watch(self, conversation: Conversation) -> None:
        """Something has been sent in this conversation."""
        if conversation not in self._busy:
            self._busy.append(conversation)

    def of_chat(self, chat_id: int) -> Conversation | None:
        """The conversation of this chat if it has a reply running or a prompt waiting."""
        self._forget_idle()
        return next((c for c in self._busy if c.chat and c.chat.id == chat_id), None)

    def seen(self, chat: Chat) -> None:
        """The user has opened this chat."""
        self.unseen = {c for c in self.unseen if c.chat is None or c.chat.id != chat.id}

    @property
    def marks(self) -> Marks:
        """The chats that are answering, waiting, or have an unread answer."""
        self._forget_idle()
        busy = {c.chat.id: c.busy for c in self._busy if c.chat}
        answering = {i for i, replies in busy.items() if any(r.stage is not Stage.WAITING for r in replies)}
        news = {c.chat.id for c in self.unseen if c.chat}
        return Marks(frozenset(answering), frozenset(busy.keys() - answering), frozenset(news))

    def _forget_idle(self) -> None:
        self._busy = [c for c in self._busy if c.busy or c.waiting]
