"""Messages of a conversation as a tree: each follows its parent, and each remembers which of its followers is shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from specchat.engine import MessagePart


@dataclass(eq=False, repr=False, kw_only=True)
class Node:
    """A message, or the root of a conversation, which its first prompts follow."""

    row: int | None = None
    """Its row in the store, once stored."""
    results: tuple[MessagePart, ...] = ()
    """What the calls of the reply before returned."""
    parent: Node | None = field(default=None, init=False)
    """The message that it follows; None for a root, and for a message outside a conversation."""
    children: list[Node] = field(default_factory=list, init=False)
    """The messages that follow it, oldest first: replies to a prompt, versions of the prompt after a reply. While a
    prompt waits for its first reply, the next prompt follows it."""
    shown: Node | None = field(default=None, init=False)
    """The child that a path through this message continues with."""

    @property
    def siblings(self) -> list[Node]:
        """All messages with the same parent, including this one, oldest first."""
        return [self] if self.parent is None else self.parent.children

    @property
    def place(self) -> int:
        """Number of the message among its siblings, from 1."""
        return self.siblings.index(self) + 1

    @property
    def ancestors(self) -> Iterator[Node]:
        """The messages before it, last first, down to the root."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    @property
    def end(self) -> Node:
        """The last message of the path that was last shown through this one."""
        node = self
        while node.shown is not None:
            node = node.shown
        return node

    def attach(self, child: Node, *, chosen: bool = True) -> None:
        """Let a message follow this one, and show it if it is `chosen` or the first."""
        child.parent = self
        self.children.append(child)
        if chosen or self.shown is None:
            self.shown = child

    def detach(self, child: Node) -> None:
        """Remove a message and what follows it; the last of its siblings is shown instead."""
        self.children.remove(child)
        child.parent = None
        self.shown = self.children[-1] if self.children else None

    def descendants(self) -> Iterator[Node]:
        """All messages after this one, on every branch."""
        left = list(self.children)
        while left:
            node = left.pop()
            left += node.children
            yield node
