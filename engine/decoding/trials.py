"""Trials of drafts that were merged: which token is tested with which distribution, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import torch
from torch import Tensor

from specchat.engine.decoding.tree import BRANCHES, Tree
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.device.to_device import to_device


@dataclass(frozen=True, slots=True)
class Trials:
    """The trials behind each node of one tree: one for every draft that goes on there, in the order they are made.

    A token that two drafts brought is tried twice. The order must not depend on the tokens.
    """

    children: tuple[tuple[int, ...], ...]
    """By node, the child of each trial."""
    sources: tuple[tuple[int, ...], ...]
    """By node, where `Draft.tree_q` has the distribution that each trial's token was drawn from."""

    def widths(self, tree: Tree) -> list[int]:
        """Per depth, the most trials behind a node."""
        return [max(len(self.children[node]) for node in level) for level in tree.levels]


def trial_mask(tree_mask: TreeMask, trials: Sequence[Trials]) -> tuple[TreeMask, Tensor]:
    """The mask with the child of each trial in place of each child, and the trials' sources [B, T, `BRANCHES`]."""
    width, device = tree_mask.width, tree_mask.children.device
    widths = zip_longest(*(each.widths(tree) for each, tree in zip(trials, tree_mask.trees, strict=True)), fillvalue=0)
    children, sources = (
        to_device(torch.tensor([_padded(table, width) for table in tables]), device)
        for tables in ([each.children for each in trials], [each.sources for each in trials])
    )
    return replace(tree_mask, children=children, widths=tuple(map(max, widths))), sources


def _padded(table: Sequence[Sequence[int]], width: int) -> list[list[int]]:
    """Lines of `BRANCHES`, so many; 0 for nothing."""
    return [[*line, *[0] * (BRANCHES - len(line))] for line in (*table, *[()] * (width - len(table)))]
