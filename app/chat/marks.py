"""Chats that are answering, waiting, or have an unread answer: the signs in the list of chats."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Marks:
    """Ids of chats by what is to be said of them."""

    answering: frozenset[int] = frozenset()
    waiting: frozenset[int] = frozenset()
    """A prompt was sent, and no reply has begun: the models are loading or every slot is taken."""
    news: frozenset[int] = frozenset()
    """A reply has ended since the chat was last shown."""

    def sign(self, chat_id: int) -> tuple[str, str]:
        """The sign before the title, as wide as none, and the part of the list's styles it has."""
        if chat_id in self.answering:
            return "● ", "busy"
        if chat_id in self.waiting:
            return "◌ ", "busy"
        return ("◆ ", "news") if chat_id in self.news else ("  ", "busy")

    def without(self, chat_id: int) -> Marks:
        """The marks of the other chats."""
        return Marks(*(frozenset(ids - {chat_id}) for ids in (self.answering, self.waiting, self.news)))
