"""Part of a token tree: drafted tokens that are fed after those before them, which the cache holds already.

A draft model extends a tree level by level. Each pass writes the tokens of one level to separate columns after
the row's last token, and they attend to what precedes the tree and to their ancestors in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from specchat.engine.decoding.tree_mask import tree_visibility
from specchat.engine.device.device import to_device
from specchat.engine.device.padding import padded_width


@dataclass(frozen=True, slots=True)
class TreePlace:
    """A drafted token that is to be fed."""

    slot: int
    first: int
    """Column and position of the row's last token, the root of the tree."""
    token: int
    column: int
    """Where its key and value go: this many columns after `first`."""
    path: Sequence[int]
    """Such columns of the drafted tokens before it, from the root on."""


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
                line = [*place.path, place.column]
                inside[b, i, line] = True
                depths[b, line] = torch.arange(1, len(line) + 1)
                asking[b, i] = len(line)
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
        """As `TreeMask.visibility`."""
        return tree_visibility(self.inside, self.depths, self.asking, self.first, columns, window)


@dataclass(frozen=True, slots=True)
class FedPlaces:
    """A pass over places of several rows, those of a row in consecutive columns."""

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
        """The pass over these places, those of a row next to each other, in a cache of so many columns."""
        rows = [list(mine) for _, mine in groupby(places, key=lambda place: place.slot)]
        starts = [mine[0].first + mine[0].column for mine in rows]
        width = min(padded_width(max(map(len, rows))), columns - max(starts))
        tokens = to_device([[place.token for place in mine] + [0] * (width - len(mine)) for mine in rows], device)
        slots, counts = [mine[0].slot for mine in rows], [len(mine) for mine in rows]
        return cls(tokens, slots, starts, TreePart.of(rows, width, device), counts)

    def joined(self, logits: Tensor) -> Tensor:
        """Logits [n, V] of the places, from those of the pass [B, Q, V]."""
        if len(self.counts) == 1:
            return logits[0, : self.counts[0]]
        return torch.cat([each[:count] for each, count in zip(logits, self.counts, strict=True)])
