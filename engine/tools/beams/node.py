"""Tokens of a text that goes on in several ways: each knows the one before it."""

from __future__ import annotations

from collections.abc import Container, Iterable


class Node:
    """A token at the end of a text.

    Args:
        token: its id.
        parent: the token before it; None for the last one of a prompt.
        position: of the token in the text, from 0.
    """

    __slots__ = ("_followers", "parent", "position", "token")

    def __init__(self, token: int, parent: Node | None, position: int) -> None:
        self.token = token
        self.parent = parent
        self.position = position
        self._followers: dict[int, Node] = {}

    def followed_by(self, token: int) -> Node:
        """The text with one token more; the same object each time."""
        found = self._followers.get(token)
        if found is None:
            found = self._followers[token] = Node(token, self, self.position + 1)
        return found

    def path(self, known: Container[Node] = ()) -> list[Node]:
        """This token and those before it, in order: from the prompt's last one on, or from behind a known one."""
        path: list[Node] = []
        node: Node | None = self
        while node is not None and node not in known:
            path.append(node)
            node = node.parent
        return path[::-1]


def paths(ends: Iterable[Node], known: Container[Node] = ()) -> list[Node]:
    """The tokens of several texts, each once and behind the one before it, without known ones."""
    return list(dict.fromkeys(node for end in ends for node in end.path(known)))
