"""Tree mask: the token trees of a batch as tensors, and the attention mask they give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest

import torch
from torch import Tensor

from specchat.engine.decoding.tree import BRANCHES, Tree
from specchat.engine.device.device import to_device


@dataclass(frozen=True, slots=True)
class TreeMask:
    """One tree per row, padded to T tokens; a padding token attends to itself and to what precedes the pass."""

    depths: Tensor
    """[B, T], int64: depth of each token; 0 for the row's last."""
    inside: Tensor
    """[B, T, T], bool: whether the second token is the first or one of its ancestors."""
    candidates: Tensor
    """[B, T, `BRANCHES`], int64: nodes tested after each token, in order; 0 for none."""
    sources: Tensor
    """[B, T, `BRANCHES`], int64: index of the distribution that each candidate was drawn from."""
    widths: tuple[int, ...]
    """Per depth, the largest number of candidates in any row."""
    trees: tuple[Tree, ...]
    """The trees themselves."""

    @classmethod
    def of(cls, trees: Sequence[Tree], width: int, device: torch.device) -> TreeMask:
        """Tree mask of a batch, padded to T = `width`. Cached: the tensors are shared and must not be written to."""
        return cls._of(tuple(trees), width, device)

    @classmethod
    @lru_cache(maxsize=64)
    def _of(cls, trees: tuple[Tree, ...], width: int, device: torch.device) -> TreeMask:
        return cls.fresh(trees, width, device)

    @classmethod
    def fresh(cls, trees: Sequence[Tree], width: int, device: torch.device) -> TreeMask:
        """Like `of`, with new tensors."""
        tables = {tree: _table(tree, width) for tree in trees}
        places = {tree: place for place, tree in enumerate(tables)}
        rows = torch.tensor([places[tree] for tree in trees])
        names = ("depths", "inside", "candidates", "sources")
        parts = ([getattr(table, name) for table in tables.values()] for name in names)
        depths, inside, candidates, sources = (to_device(torch.cat(part)[rows], device) for part in parts)
        widths = zip_longest(*(table.widths for table in tables.values()), fillvalue=0)
        return cls(depths, inside, candidates, sources, tuple(map(max, widths)), tuple(trees))

    @property
    def width(self) -> int:
        """T."""
        return self.depths.shape[1]

    def positions(self, columns: Tensor) -> Tensor:
        """[B, T], int64, of the tokens of trees that are written to `columns` [B, T]."""
        return columns[:, :1] + self.depths

    def visibility(self, written: Tensor, columns: Tensor, window: int | None) -> Tensor:
        """`tree_visibility` [B, 1, T, S] of trees that are written to `written` [B, T]."""
        return tree_visibility(self.inside, self.depths, self.depths, written[:, 0], columns, window)


@lru_cache(maxsize=1024)
def _table(tree: Tree, width: int) -> TreeMask:
    """The mask of one tree, on the host."""
    depths = torch.arange(width)[None]
    inside = torch.eye(width, dtype=torch.bool)[None]
    tests = torch.zeros(2, 1, width, BRANCHES, dtype=torch.long)
    depths[0, : len(tree) + 1] = torch.tensor(tree.depths)
    for node, candidates in enumerate(tree.candidates):
        inside[0, node, [0, *tree.path(node)]] = True
        if candidates:
            tests[:, 0, node, : len(candidates)] = torch.tensor(candidates).T
    widths = tuple(max(len(tree.candidates[node]) for node in level) for level in tree.levels)
    return TreeMask(depths, inside, tests[0], tests[1], widths, (tree,))


def tree_visibility(
    inside: Tensor, depths: Tensor, asking: Tensor, first: Tensor, columns: Tensor, window: int | None = None
) -> Tensor:
    """Attention mask of tree tokens over columns of the cache: everything before the tree, and their ancestors in it.

    Args:
        inside: [B, Q, T], bool, rows of `TreeMask.inside` of the Q query tokens.
        depths: [B, T], of all tokens.
        asking: [B, Q], depths of the query tokens.
        first: [B], column (and position) of each row's token 0; token i is i columns further.
        columns: [S] or [B, S], int64, the columns to attend over.
        window: sliding window in positions, the token itself included; None for full attention.

    Returns:
        [B, 1, Q, S], bool.
    """
    place = columns - first[:, None]
    within = place.clamp(0, inside.shape[-1] - 1)
    own = inside.gather(-1, within[:, None].expand(-1, inside.shape[1], -1)) & (place < inside.shape[-1])[:, None]
    seen = torch.where((place < 0)[:, None], True, own)
    if window is not None:
        behind = torch.where(place < 0, place, depths.gather(-1, within))
        seen = seen & (asking[..., None] - behind[:, None] < window)
    return seen[:, None]
