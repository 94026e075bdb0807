"""How chats stand that are not simply at rest: the signs in their list."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Marks:
    """How chats stand, by id."""

    answering: frozenset[int] = frozenset()
    waiting: frozenset[int] = frozenset()
    """A prompt was sent, and no reply has begun: the models are loading or every slot is taken."""
    news: frozenset[int] = frozenset()
    """A reply has ended since the chat was last shown."""

    def sign(self, chat_id: int) -> tuple[str, str]:
        """What stands before the title, and the part of the look it has."""
        if chat_id in self.answering:
            return "● ", "busy"
        if chat_id in self.waiting:
            return "◌ ", "busy"
        return ("◆ ", "news") if chat_id in self.news else ("", "busy")

    def without(self, chat_id: int) -> Marks:
        """How the other chats stand."""
        return Marks(*(frozenset(ids - {chat_id}) for ids in (self.answering, self.waiting, self.news)))
