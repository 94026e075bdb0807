"""The prompts and replies that are laid out: the last ones, and earlier ones once one scrolls near them."""

from __future__ import annotations

from collections.abc import Callable

from specchat.app.chat.conversation import Conversation, Turn
from specchat.app.ui.rendering.block_stack import TurnOrReply

FIRST_CHARACTERS = 12_000
"""A chat is opened with its last prompts and replies of this length."""
PartsOf = Callable[[Conversation], list[TurnOrReply]]


class ShownParts:
    """The end of a list of prompts and replies; `parts_of` gives all of them, from top to bottom."""

    def __init__(self, parts_of: PartsOf) -> None:
        self.hidden = 0
        """Prompts and replies at the beginning that are not laid out yet."""
        self._parts_of = parts_of

    def of(self, conversation: Conversation) -> list[TurnOrReply]:
        """What is laid out, or about to be: two parts at least."""
        parts = self._parts_of(conversation)
        self.hidden = min(self.hidden, max(len(parts) - 2, 0))
        return parts[self.hidden :]

    def hide_above_end(self, conversation: Conversation) -> None:
        """Lay out no more than the last ones, which fill a few screens."""
        parts, room = self._parts_of(conversation), FIRST_CHARACTERS
        while parts and room > 0:
            part = parts.pop()
            room -= 200 + len(part.prompt if isinstance(part, Turn) else part.text)
        self.hidden = len(parts)

    def reach(self, conversation: Conversation, part: TurnOrReply) -> None:
        """Lay out a part, and what is below it."""
        parts = self._parts_of(conversation)
        if part in parts[: self.hidden]:
            self.hidden = parts.index(part)
