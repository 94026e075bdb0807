"""Prefix tree over blocks of tokens: which cache blocks hold the beginning of a text.

A node is one block and the tokens in it; its path from the root is the text up to its end, as in RadixAttention (Zheng
et al. 2024, "SGLang", section 3), with nodes of one block each, so that a node is what is stored, shared and evicted.
Only the last block of a text may be partly filled.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

BLOCK = 32
"""Columns of a block; `kCacheBlock` of the kernels."""


@dataclass(eq=False, slots=True)
class Node:
    """One block of a text."""

    tokens: Sequence[int]
    block: int
    parent: Node | None
    children: dict[int, list[Node]] = field(default_factory=dict)
    """Nodes by their first token."""
    used: int = 0
    """Time of last use; larger is more recent."""
    filled_by: str = ""
    """Name of the request that first read this block."""
    states: dict[tuple[Any, int], Any] = field(default_factory=dict)
    """States of recurrent layers, by what knows them of slots and by length of the text."""

    @property
    def ends(self) -> bool:
        """Whether the text that was last used ends here."""
        return all(child.used < self.used for children in self.children.values() for child in children)

    def text(self) -> list[int]:
        """All tokens up to its end."""
        parts, node = list[Sequence[int]](), self
        while node.parent:
            parts.append(node.tokens)
            node = node.parent
        return [token for part in reversed(parts) for token in part]

    def best_child(self, tokens: Sequence[int]) -> tuple[Node | None, int]:
        """The child that shares most leading tokens, and how many."""
        best, most = None, 0
        for child in self.children.get(tokens[0], ()) if tokens else ():
            shared = common_prefix(child.tokens, tokens)
            if shared > most:
                best, most = child, shared
        return best, most


class PrefixTree:
    """Texts whose blocks are known."""

    def __init__(self) -> None:
        self._root = Node((), 0, None)
        self._clock = 0
        self.nodes: set[Node] = set()

    def find(self, tokens: Sequence[int]) -> list[tuple[Node, int]]:
        """The longest known beginning of a text: nodes, and how many tokens of each; all but the last are full."""
        self._clock += 1
        found: list[tuple[Node, int]] = []
        node = self._root
        for start in range(0, len(tokens), BLOCK):
            child, shared = node.best_child(tokens[start : start + BLOCK])
            if child is None:
                break
            child.used = self._clock
            found.append((child, shared))
            if shared < BLOCK:
                break
            node = child
        return found

    def insert(self, tokens: Sequence[int], blocks: Sequence[int]) -> Iterator[tuple[Node, int | None]]:
        """Add a text that is stored in these blocks.

        Yields:
            For each block, its node, and the block that the node held before: the same where the text was known; None
            for a new node. The caller may put another block into the node.
        """
        self._clock += 1
        node = self._root
        for number, start in enumerate(range(0, len(tokens), BLOCK)):
            part, block = tokens[start : start + BLOCK], blocks[number]
            child, shared = node.best_child(part)
            before = None if child is None else child.block
            if child is None or shared < min(len(part), len(child.tokens)):
                child = Node(part, block, node)
                node.children.setdefault(part[0], []).append(child)
                self.nodes.add(child)
                before = None
            elif len(child.tokens) < len(part):  # a partly filled block that has been continued
                child.tokens, child.block = part, block
            child.used = self._clock
            yield child, before
            node = child

    def texts(self) -> Counter[Node]:
        """Number of texts that contain each node."""
        count: Counter[Node] = Counter()
        for node in self.nodes:
            above = None if node.children else node
            while above is not None:
                count[above] += 1
                above = above.parent
        del count[self._root]
        return count

    def evict(self, unused: Callable[[Node], bool], count: int) -> Iterator[Node]:
        """Remove up to `count` nodes that are `unused`, leaves first, the least recently used ones first."""
        heap = [(node.used, id(node), node) for node in self.nodes if not node.children and unused(node)]
        heapq.heapify(heap)
        while heap and count:
            count -= 1
            node = heapq.heappop(heap)[2]
            parent = node.parent
            assert parent is not None
            siblings = parent.children[node.tokens[0]]
            siblings.remove(node)
            if not siblings:
                del parent.children[node.tokens[0]]
            self.nodes.remove(node)
            if parent is not self._root and not parent.children and unused(parent):
                heapq.heappush(heap, (parent.used, id(parent), parent))
            yield node


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Number of leading tokens that two token lists share."""
    length = min(len(a), len(b))
    if a[:length] == b[:length]:
        return length
    return next((i for i in range(length) if a[i] != b[i]), length)
