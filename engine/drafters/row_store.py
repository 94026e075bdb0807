"""Memory of what a drafter keeps of the tokens of every slot, by rows for its passes and by blocks for later texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from specchat.engine.cache.block_pool import BlockPool, BlockStore
from specchat.engine.cache.kv_cache import lazy_zeros
from specchat.engine.cache.prefix_tree import BLOCK
from specchat.engine.device.device import to_device


class RowStore(BlockStore):
    """Tensors of a drafter with an entry for each column of each slot.

    Args:
        rows: tensors [slots, columns, …] that are kept with a text.
        pool: the blocks of the target's cache, which has as many slots and columns.
        window: columns before the end of a text that are looked at; None for all.
    """

    def __init__(self, rows: Sequence[Tensor], pool: BlockPool, window: int | None = None) -> None:
        self._rows, self._window = rows, window
        self.column_bytes = sum(each[0, 0].nbytes for each in rows)
        super().__init__(pool)

    @property
    def bytes(self) -> int:
        """Memory of all slots."""
        return sum(each.nbytes for each in self._rows)

    def allocate(self, blocks: int) -> None:
        """Have memory for this number of blocks."""
        self.memory = ()
        self.memory = [lazy_zeros((blocks, BLOCK, *each.shape[2:]), each.device, each.dtype) for each in self._rows]

    def load(self, slot: int, length: int) -> None:
        """Copy what is looked at of a slot's first columns from its blocks."""
        start = 0 if self._window is None else max(length - self._window, 0)
        for rows, saved, blocks in self._blocks(slot, start, length):
            rows.copy_(saved[blocks])

    def save(self, slot: int, start: int, end: int) -> None:
        """Copy columns of a slot to its blocks."""
        for rows, saved, blocks in self._blocks(slot, start, end):
            saved[blocks] = rows

    def _blocks(self, slot: int, start: int, end: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Whole blocks with these columns: the slot's [n, BLOCK, …], the memory of all blocks, and which they are."""
        first, last = start // BLOCK, -(-end // BLOCK)
        blocks = to_device(torch.from_numpy(self.pool.tables[slot, first:last]), self._rows[0].device, torch.long)
        for rows, saved in zip(self._rows, self.memory, strict=False):
            yield rows[slot, first * BLOCK : last * BLOCK].view(last - first, *saved.shape[1:]), saved, blocks
