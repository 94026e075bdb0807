"""Texts with one beginning in one slot of a KV cache: what they share stands there once.

The slot holds the beginning that all texts share, column by column, and behind its last token, the root, a tree of
what differs, each token in a column of its own. A pass reads tokens behind any of them, whatever texts they belong to,
as one row under a tree mask. Texts that are dropped leave gaps, which are closed; no text is copied to another slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from specchat.engine.backends.runner import Runner
from specchat.engine.decoding.tree_part import TreePlace
from specchat.engine.device.to_device import to_device
from specchat.engine.tools.beams.node import Node

_SLOT = 0


class BranchCache:
    """The texts in a runner's cache.

    Args:
        runner: of a model; its cache has one slot.
        chunk: tokens of a prompt that are read in one pass.
    """

    def __init__(self, runner: Runner, chunk: int) -> None:
        self._runner = runner
        self._chunk = chunk
        self._tree: dict[Node, int] = {}
        """Tokens from the root on, and how many columns behind it each one stands."""

    def __contains__(self, node: object) -> bool:
        return node in self._tree

    @property
    def _root(self) -> Node:
        return next(iter(self._tree))

    def read(self, prompt: Sequence[int], root: Node) -> Tensor:
        """Read a prompt of which `root` is the last token; logits [1, V], float32, of what follows it."""
        before = list(prompt[:-1])
        for start in range(0, len(before), self._chunk):
            fed = to_device([before[start : start + self._chunk]], self._runner.device)
            self._runner.prefill(fed, [_SLOT], [start])
        self._tree = {root: 0}
        fed = to_device([[root.token]], self._runner.device)
        return self._runner.forward(fed, [_SLOT], [root.position])[:, 0].float()

    def feed(self, nodes: Sequence[Node]) -> Tensor:
        """One pass over tokens whose parents have been read or come before them; logits [n, V] of what follows each."""
        for node in nodes:
            self._tree[node] = len(self._tree)
        root = self._root
        columns = [[self._tree[each] for each in node.path((root,))] for node in nodes]
        places = [
            TreePlace(_SLOT, root.position, node.token, own, before)
            for node, (*before, own) in zip(nodes, columns, strict=True)
        ]
        return self._runner.extend(places).to(torch.float32, copy=True)  # the next pass writes over it

    def keep(self, ends: Sequence[Node]) -> None:
        """Drop all tokens but those of the texts with these ends; what these share becomes their common beginning."""
        live, forks = {self._root}, set()
        for end in ends:
            node = end
            while node not in self._tree:  # not read yet
                assert node.parent is not None
                node = node.parent
            forks.add(node)
            live.update(node.path(live))
        order = [node for node in self._tree if node in live]
        self._close_gaps([self._tree[node] for node in order], self._root.position)
        self._tree = {node: place for place, node in enumerate(order[_shared(order, forks) :])}

    def _close_gaps(self, places: Sequence[int], start: int) -> None:
        """Move what stands at these places behind the column `start` to the columns from there on."""
        moved = next((i for i, place in enumerate(places) if place != i), len(places))
        if moved < len(places):
            device = self._runner.device
            path = to_device([[place - moved + 1 for place in places[moved:]]], device)
            self._runner.cache.keep(to_device([_SLOT], device), to_device([start + moved - 1], device), path)


def _shared(order: Sequence[Node], forks: Collection[Node]) -> int:
    """How many tokens of a tree come before the first one that several texts go on behind, or that one ends with."""
    followers = Counter(node.parent for node in order)
    return next(place for place, node in enumerate(order) if node in forks or followers[node] > 1)
