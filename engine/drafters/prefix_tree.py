"""Prefix tree of several chains: the same token behind the same tokens is there once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specchat.engine.decoding.tree import Tree
from specchat.engine.decoding.trials import Trials


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """Chains that were merged; those of the first chain are its first tokens."""

    tokens: list[int]
    """[K]"""
    tree: Tree
    paths: list[list[int]]
    """Per chain, the nodes of its tokens."""

    @classmethod
    def of(cls, chains: Sequence[Sequence[int]]) -> PrefixTree:
        """Merge chains of tokens."""
        tokens: list[int] = []
        parents: list[int] = []
        known: dict[tuple[int, int], int] = {}
        paths: list[list[int]] = []
        for chain in chains:
            node, path = 0, list[int]()
            for token in chain:
                if (node, token) not in known:
                    tokens.append(token)
                    parents.append(node)
                    known[node, token] = len(tokens)
                node = known[node, token]
                path.append(node)
            paths.append(path)
        return cls(tokens, Tree(tuple(parents)), paths)

    def owners(self) -> list[int]:
        """[K], the first chain that each token is of."""
        owners = [0] * len(self.tokens)
        for number in reversed(range(len(self.paths))):
            for node in self.paths[number]:
                owners[node - 1] = number
        return owners

    def trials(self, orders: Sequence[Sequence[int]], first: Sequence[int]) -> Trials:
        """The trials of the chains' tokens.

        Args:
            orders: by position, the chains in the order in which their tokens are tried there.
            first: by chain, where the distributions have that of its first token; those of further ones follow.
        """
        children: list[list[int]] = [[] for _ in range(len(self.tokens) + 1)]
        sources: list[list[int]] = [[] for _ in children]
        for place, order in enumerate(orders):
            for number in order:
                path = self.paths[number]
                if place < len(path):
                    parent = path[place - 1] if place else 0
                    children[parent].append(path[place])
                    sources[parent].append(first[number] + place)
        return Trials(tuple(map(tuple, children)), tuple(map(tuple, sources)))
