"""Token trees: drafts that offer several tokens for one position.

One pass verifies all branches of a tree, each token attending only to its ancestors (Miao et al. 2024, "SpecInfer").
A chain is a tree without branches.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

BRANCHES = 4
"""Most tokens offered for one position."""
LONGEST = 8
"""Largest γ of a draft that branches; a longer one is a chain."""
_SHAPE = tuple(
    tuple(map(int, ranks))
    for ranks in ("0", "00", "1", "000", "2", "10", "01", "3", "0000", "20", "100", "02", "001", "03", "010", "30")
)
"""Nodes of the tree, best first, each as the ranks of the tokens on the path to it.

As in Sequoia (Chen et al. 2024) the shape is fixed and chosen by the measured acceptance rate per rank: for the default
model's head at temperature 1 they are 0.44, 0.10, 0.06 and 0.03, nearly independent of depth.
"""
_DEPTH = max(map(len, _SHAPE))


class Candidate(NamedTuple):
    """A token that is tested after a node."""

    node: int
    """The token's own node. One node may be tested several times, once for each draft that proposed it."""
    source: int
    """Index of the distribution in `Draft.q` that it was drawn from. Neighbouring candidates of one source were drawn
    without replacement."""


@dataclass(frozen=True)
class Tree:
    """Tree over the tokens of one pass: node 0 is the row's last token, node i the i-th drafted one."""

    parents: tuple[int, ...]
    """Parent node of each drafted token; parents come before children, and siblings in the order they are tested."""
    tests: tuple[tuple[Candidate, ...], ...] | None = None
    """Per node, the candidates in the order they are tested, where they differ from the default (`candidates`)."""

    def __len__(self) -> int:
        """Number of drafted tokens."""
        return len(self.parents)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Depth of each node; 0 for the row's last token."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children of each node, in the order in which they are tested."""
        children: list[list[int]] = [[] for _ in self.depths]
        for child, parent in enumerate(self.parents, 1):
            children[parent].append(child)
        return tuple(tuple(each) for each in children)

    @cached_property
    def candidates(self) -> tuple[tuple[Candidate, ...], ...]:
        """Per node, the candidates after it: by default its children, drawn from the distribution of that index."""
        if self.tests is not None:
            return self.tests
        return tuple(tuple(Candidate(child, node) for child in each) for node, each in enumerate(self.children))

    @cached_property
    def branches(self) -> bool:
        """Whether some position has several candidates; False for a chain."""
        return any(len(each) > 1 for each in self.candidates)

    @cached_property
    def depth(self) -> int:
        """Length of the longest branch."""
        return max(self.depths)

    @cached_property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """Inner nodes (nodes with children) at each depth but the last."""
        inner = [i for i, children in enumerate(self.children) if children]
        return tuple(tuple(i for i in inner if self.depths[i] == depth) for depth in range(self.depth))

    @cached_property
    def inner(self) -> int:
        """Smallest n such that the first n nodes include all inner nodes."""
        return max(self.parents, default=-1) + 1

    def first(self, count: int) -> Tree:
        """Tree of the first `count` drafted tokens.

        Raises:
            ValueError: the tree lists its candidates, so its shape depends on the draws and may not be cut.
        """
        if self.tests is not None:
            raise ValueError("a tree with listed candidates cannot be shortened")
        return tree_from(self.parents[:count])

    def path(self, end: int) -> list[int]:
        """Nodes from the root's child down to `end`."""
        path: list[int] = []
        while end:
            path.append(end)
            end = self.parents[end - 1]
        return path[::-1]

    def first_branch(self, start: int) -> list[int]:
        """`start` and the first child of each node below it."""
        nodes = [start]
        while children := self.children[nodes[-1]]:
            nodes.append(children[0])
        return nodes


@lru_cache
def chain(length: int) -> Tree:
    """Tree of `length` tokens, one per position."""
    return Tree(tuple(range(length)))


@lru_cache(maxsize=1024)
def tree_from(parents: tuple[int, ...]) -> Tree:
    """Tree with these parents, cached with its derived properties."""
    return Tree(parents)


@lru_cache
def tree_of(gamma: int) -> Tree:
    """Tree for a draft of `gamma` ≤ `LONGEST` positions; it has at most `MAX_GAMMA` tokens, as the longest chain."""
    deeper = [(0,) * depth for depth in range(_DEPTH + 1, gamma + 1)]
    nodes = [ranks for ranks in (*_SHAPE[: len(_SHAPE) - len(deeper)], *deeper) if len(ranks) <= gamma]
    places = {(): 0, **{ranks: place for place, ranks in enumerate(nodes, 1)}}
    return Tree(tuple(places[ranks[:-1]] for ranks in nodes))
