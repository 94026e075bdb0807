"""Drafts that offer several tokens for one position: which drafted token follows which.

A pass over a tree of drafts judges all its branches at once, each token seeing only what it follows (Miao et al. 2024,
"SpecInfer"). A chain is a tree without branches.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

BRANCHES = 4
"""Most tokens offered for one position."""
LONGEST = 8
"""Longest draft that branches; a longer one is a chain."""
_SHAPE: tuple[tuple[int, ...], ...] = (
    (0,),
    (0, 0),
    (1,),
    (0, 0, 0),
    (2,),
    (1, 0),
    (0, 1),
    (3,),
    (0, 0, 0, 0),
    (2, 0),
    (1, 0, 0),
    (0, 2),
    (0, 0, 1),
    (0, 3),
    (0, 1, 0),
    (3, 0),
)
"""The tokens worth verifying, each by the ranks of what leads to it, best first.

As in Sequoia (Chen et al. 2024) the shape is fixed, and chosen for what the ranks were measured to be
accepted: at temperature 1 of the default model's head 0.44, 0.10, 0.06 and 0.03, hardly different with depth.
"""
_DEPTH = max(map(len, _SHAPE))


@dataclass(frozen=True)
class Tree:
    """What follows what among the tokens of one pass: 0 is the last token of the row, i the i-th drafted one."""

    parents: tuple[int, ...]
    """Of each drafted token, in order; a token comes after what it follows, and after those that are offered before
    it for the same position."""

    def __len__(self) -> int:
        """Drafted tokens."""
        return len(self.parents)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Of each token of the pass; 0 for the row's last."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """What is offered behind each token of the pass, in the order in which it is judged."""
        children: list[list[int]] = [[] for _ in self.depths]
        for child, parent in enumerate(self.parents, 1):
            children[parent].append(child)
        return tuple(tuple(each) for each in children)

    @property
    def depth(self) -> int:
        """Positions that the longest branch fills."""
        return max(self.depths)

    @cached_property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """For each depth but the last, the tokens that something is offered behind."""
        inner = [i for i, children in enumerate(self.children) if children]
        return tuple(tuple(i for i in inner if self.depths[i] == depth) for depth in range(self.depth))

    @property
    def inner(self) -> int:
        """How many of the pass's first tokens hold all that something is offered behind."""
        return max(self.parents, default=-1) + 1

    def first(self, count: int) -> Tree:
        """The tree of the first drafted tokens."""
        return Tree(self.parents[:count])

    def path(self, end: int) -> list[int]:
        """The drafted tokens that lead to `end`, which comes last."""
        path: list[int] = []
        while end:
            path.append(end)
            end = self.parents[end - 1]
        return path[::-1]

    def line(self, start: int) -> list[int]:
        """`start` and the first choices behind it."""
        line = [start]
        while behind := self.children[line[-1]]:
            line.append(behind[0])
        return line


@lru_cache
def chain(length: int) -> Tree:
    """One token for each position."""
    return Tree(tuple(range(length)))


@lru_cache
def tree_of(gamma: int) -> Tree:
    """The tree for a draft of `gamma` positions, at most `LONGEST`; it has no more tokens than the longest chain."""
    deeper = [(0,) * depth for depth in range(_DEPTH + 1, gamma + 1)]
    nodes = [ranks for ranks in (*_SHAPE[: len(_SHAPE) - len(deeper)], *deeper) if len(ranks) <= gamma]
    places = {(): 0, **{ranks: place for place, ranks in enumerate(nodes, 1)}}
    return Tree(tuple(places[ranks[:-1]] for ranks in nodes))
