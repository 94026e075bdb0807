"""Token trees of a batch as tensors, and the attention masks they give: whole trees, and parts that are fed later.

A draft model extends a tree level by level. Each pass writes the tokens of one level to separate columns after the
row's last token, and they attend to what precedes the tree and to their ancestors in it, which the cache holds already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, zip_longest

import torch
from torch import Tensor

from specchat.engine.decoding.tree import BRANCHES, Tree
from specchat.engine.device.device import padded_width, to_device


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


@dataclass(frozen=True, slots=True)
class TreePlace:
    """A drafted token that is to be fed."""

    slot: int
    first: int
    """Column and position of the row's last token, the root of the tree."""
    token: int
    column: int
    """Column of its key and value, counted from `first`."""
    path: Sequence[int]
    """Columns of the drafted tokens before it, from the root on, counted likewise."""


@dataclass(frozen=True, slots=True)
class TreePart:
    """Places of B rows, padded to Q; what is fed as padding attends to what precedes the tree."""

    first: Tensor
    """[B], int64: `TreePlace.first`."""
    inside: Tensor
    """[B, Q, N], bool: whether a place sees the n-th column from `first` on."""
    depths: Tensor
    """[B, N], int64: depth of what is in such a column."""
    asking: Tensor
    """[B, Q], int64: depth of each place."""

    @classmethod
    def of(cls, rows: Sequence[Sequence[TreePlace]], width: int, device: torch.device) -> TreePart:
        """The part made of the places of each row.

        Args:
            rows: B.
            width: Q, not less than any row has.
            device: of the tensors.
        """
        columns = 1 + max(place.column for places in rows for place in places)
        inside = torch.zeros(len(rows), width, columns, dtype=torch.bool)
        depths, asking = torch.zeros(len(rows), columns, dtype=torch.long), torch.ones(len(rows), width).long()
        inside[:, :, 0] = True
        for b, places in enumerate(rows):
            for i, place in enumerate(places):
                nodes = [*place.path, place.column]
                inside[b, i, nodes] = True
                depths[b, nodes] = torch.arange(1, len(nodes) + 1)
                asking[b, i] = len(nodes)
        first = torch.tensor([places[0].first for places in rows])
        return cls(*(to_device(part, device) for part in (first, inside, depths, asking)))

    @property
    def width(self) -> int:
        """Q."""
        return self.asking.shape[1]

    def positions(self, columns: Tensor) -> Tensor:  # noqa: ARG002
        """[B, Q], int64, of tokens that are written to `columns` [B, Q]."""
        return self.first[:, None] + self.asking

    def visibility(self, written: Tensor, columns: Tensor, window: int | None) -> Tensor:  # noqa: ARG002
        """Attention mask, as `TreeMask.visibility`."""
        return tree_visibility(self.inside, self.depths, self.asking, self.first, columns, window)


@dataclass(frozen=True, slots=True)
class FedPlaces:
    """A pass over places of several rows; the places of a row have consecutive columns."""

    tokens: Tensor
    """[B, Q], int64, padded."""
    slots: list[int]
    starts: list[int]
    """Per row, the first column that is written."""
    part: TreePart
    counts: list[int]
    """Places of each row."""

    @classmethod
    def of(cls, places: Sequence[TreePlace], columns: int, device: torch.device) -> FedPlaces:
        """The pass over these places, in which places of a row are neighbours, in a cache of `columns` columns."""
        rows = [list(mine) for _, mine in groupby(places, key=lambda place: place.slot)]
        starts = [mine[0].first + mine[0].column for mine in rows]
        width = min(padded_width(max(map(len, rows))), columns - max(starts))
        tokens = to_device([[place.token for place in mine] + [0] * (width - len(mine)) for mine in rows], device)
        slots, counts = [mine[0].slot for mine in rows], [len(mine) for mine in rows]
        return cls(tokens, slots, starts, TreePart.of(rows, width, device), counts)

    def joined(self, logits: Tensor) -> Tensor:
        """Logits [n, V] of the places, from the logits [B, Q, V] of the pass."""
        if len(self.counts) == 1:
            return logits[0, : self.counts[0]]
        return torch.cat([each[:count] for each, count in zip(logits, self.counts, strict=True)])
