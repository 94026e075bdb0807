"""The drafts of several drafters as one batch for the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.drafters.base import Draft
from engine.sampling import one_hot
from engine.to_device import to_device
from engine.tree import Tree, chain
from engine.tree_acceptance import Support


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the target is to judge."""

    tokens: Tensor
    """[B, N], int64, on the device; 0 beyond a row's length."""
    lengths: list[int]
    q: Tensor | None
    """Of chains, [B, γ, V], float32; None where every token was certain."""
    trees: list[Tree | None] | None = None
    """What follows what, per row, None for chains; None where all are."""
    tree_q: Tensor | None = None
    """Of trees, [B, I, V'], float32, 0 for greedy rows; None where all are greedy."""
    support: Support | None = None
    """The tokens that trees are drawn from."""

    def only(self, mine: Sequence[int]) -> Proposal:
        """The drafts of some rows."""
        lengths = [self.lengths[i] for i in mine]
        longest = max(lengths)
        index = to_device(mine, self.tokens.device)
        return Proposal(
            self.tokens[index, :longest],
            lengths,
            None if self.q is None else self.q[index, :longest],
            None if self.trees is None else [self.trees[i] for i in mine],
            None if self.tree_q is None else self.tree_q[index],
            self.support,
        )

    @property
    def whole_trees(self) -> list[Tree] | None:
        """What follows what, per row, chains included; None where all are chains."""
        if self.trees is None:
            return None
        return [tree or chain(length) for tree, length in zip(self.trees, self.lengths, strict=True)]


def merge(drafts: Sequence[tuple[list[int], Draft]], rows: int, device: torch.device) -> Proposal:
    """Put each draft's rows where they belong in the batch.

    Args:
        drafts: each with the indices of the rows it is for.
        rows: B.
        device: where the proposal is judged.
    """
    if len(drafts) == 1 and drafts[0][0] == list(range(rows)):
        draft = drafts[0][1]
        tokens = _tensor(draft, device)
        q = None if draft.q is None else draft.q[:, : tokens.shape[1]]
        return Proposal(tokens, draft.lengths, q, _trees(drafts, rows), draft.tree_q, draft.support)
    lengths = [0] * rows
    tokens = torch.zeros(rows, max((max(d.lengths) for _, d in drafts), default=0), dtype=torch.long, device=device)
    q = _room([draft.q for _, draft in drafts], rows, tokens.shape[1], device)
    tree_q = _room([draft.tree_q for _, draft in drafts], rows, tokens.shape[1] + 1, device)
    for mine, draft in drafts:
        part = _tensor(draft, device)
        index = to_device(mine, device)
        tokens[index, : part.shape[1]] = part
        if q is not None:
            q[index, : part.shape[1]] = one_hot(part, q.shape[-1]) if draft.q is None else draft.q[:, : part.shape[1]]
        if tree_q is not None and draft.tree_q is not None:
            width = min(draft.tree_q.shape[1], tree_q.shape[1])
            tree_q[index, :width] = draft.tree_q[:, :width]
        for i, length in zip(mine, draft.lengths, strict=True):
            lengths[i] = length
    support = next((draft.support for _, draft in drafts if draft.support), None)
    return Proposal(tokens, lengths, q, _trees(drafts, rows), tree_q, support)


def join(drafts: Sequence[tuple[list[int], Draft]], rows: int, device: torch.device) -> Draft:
    """Drafts for some rows each as one draft for all; each must say how sure it is of its tokens."""
    whole = merge(drafts, rows, device)
    buckets: list[list[int]] = [[] for _ in range(rows)]
    for mine, draft in drafts:
        for i, each in zip(mine, draft.buckets or (), strict=True):
            buckets[i] = each
    return Draft(whole.tokens, whole.lengths, whole.q, buckets, whole.trees, whole.tree_q, whole.support)


def _trees(drafts: Sequence[tuple[list[int], Draft]], rows: int) -> list[Tree | None] | None:
    """The tree of each row that drafted one."""
    trees: list[Tree | None] = [None] * rows
    for mine, draft in drafts:
        for i, tree in zip(mine, draft.trees or (), strict=False):
            trees[i] = tree if tree else None
    return trees if any(trees) else None


def _room(parts: Sequence[Tensor | None], rows: int, width: int, device: torch.device) -> Tensor | None:
    """Zeros [rows, width, V] for distributions like these; None where there are none."""
    size = next((part.shape[-1] for part in parts if part is not None), None)
    return None if size is None else torch.zeros(rows, width, size, device=device)


def _tensor(draft: Draft, device: torch.device) -> Tensor:
    """The draft's tokens [rows, N] on the device, N its longest."""
    longest = max(draft.lengths)
    if isinstance(draft.tokens, Tensor):
        return draft.tokens[:, :longest]
    padded = [tokens + [0] * (longest - len(tokens)) for tokens in draft.tokens]
    return to_device(padded, device, torch.long).reshape(len(padded), longest)
