"""The trees of a batch as tensors: what a pass over them may look at, and what is offered where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from engine.to_device import to_device
from engine.tree import BRANCHES, Tree


@dataclass(frozen=True, slots=True)
class Forest:
    """One tree per row, padded to T tokens; what pads sees only itself and what came before the pass."""

    depths: Tensor
    """[B, T], int64: how far behind the row's last token each token stands."""
    inside: Tensor
    """[B, T, T], bool: whether the first token sees the second, which it is or follows."""
    children: Tensor
    """[B, T, `BRANCHES`], int64: what is offered behind each token; 0 for nothing."""
    widths: tuple[int, ...]
    """For each depth the most tokens that any row offers for one position."""

    @classmethod
    def of(cls, trees: Sequence[Tree], width: int, device: torch.device) -> Forest:
        """The forest of a batch whose pass has `width` tokens; the same batch gets the same tensors again."""
        return cls._of(tuple(trees), width, device)

    @classmethod
    @lru_cache(maxsize=64)
    def _of(cls, trees: tuple[Tree, ...], width: int, device: torch.device) -> Forest:
        return cls.fresh(trees, width, device)

    @classmethod
    def fresh(cls, trees: Sequence[Tree], width: int, device: torch.device) -> Forest:
        """As `of`, with tensors that belong to nobody else."""
        depths = torch.arange(width).repeat(len(trees), 1)
        inside = torch.eye(width, dtype=torch.bool).repeat(len(trees), 1, 1)
        children = torch.zeros(len(trees), width, BRANCHES, dtype=torch.long)
        for row, tree in enumerate(trees):
            depths[row, : len(tree) + 1] = torch.tensor(tree.depths)
            for token in range(len(tree) + 1):
                inside[row, token, [0, *tree.path(token)]] = True
                children[row, token, : len(tree.children[token])] = torch.tensor(tree.children[token])
        widths = [
            max(len(tree.children[i]) for tree in trees if depth < tree.depth for i in tree.levels[depth])
            for depth in range(max(tree.depth for tree in trees))
        ]
        depths, inside, children = (to_device(part, device) for part in (depths, inside, children))
        return cls(depths, inside, children, tuple(widths))


def visible(
    inside: Tensor, depths: Tensor, asking: Tensor, first: Tensor, columns: Tensor, window: int | None = None
) -> Tensor:
    """Which columns of a cache the tokens of a tree look at: all before it, and those of what they follow.

    Args:
        inside: [B, Q, T], bool, the rows of `Forest.inside` of the tokens that ask.
        depths: [B, T], of all tokens.
        asking: [B, Q], the depths of the tokens that ask.
        first: [B], the column of each row's token 0, which is its position too; token i lies i columns behind.
        columns: [S], int64, the columns in question.
        window: positions that a token looks back, itself included; None where it looks at all.

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
