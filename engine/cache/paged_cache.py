"""KV cache of the packed kernels, which read keys and values by block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.cache.block_pool import BlockPool, BlockStore, States
from specchat.engine.cache.kv_cache import Shapes, column_bytes, grouped, lazy_zeros
from specchat.engine.cache.prefix_tree import BLOCK
from specchat.engine.device.device import require_memory
from specchat.engine.errors import EngineError

Attach = Callable[[NDArray[np.int32], Sequence[Tensor], Sequence[Tensor]], None]
"""Called with the tables of the pool [slots, width], keys and values."""
_CPU = torch.device("cpu")


def _nowhere(*_: object) -> None:
    """Before a decoder is connected."""


class PagedCache(BlockStore):
    """Tensors [blocks, G, BLOCK, D], float16, of keys and of values, one pair per layer.

    Rolling back shortens a length (`SequenceState.cached`) and moves no data.

    Args:
        shapes: of the layers.
        slots: sequences that fit at once.
        columns: positions per slot.
        states: of recurrent layers, if any.
        pool: blocks of the cache; its own if None.

    Raises:
        EngineError: it does not fit into memory.
    """

    def __init__(
        self,
        shapes: Shapes,
        slots: int,
        columns: int,
        states: States | None,
        pool: BlockPool | None = None,
    ) -> None:
        self.slots, self.columns, self.states = slots, columns, states
        self._shapes = shapes
        self._attach: Attach = _nowhere
        self.column_bytes = column_bytes(shapes, torch.float16)
        size, what = slots * columns * self.column_bytes, f"a cache of {slots} x {columns} tokens"
        require_memory(_CPU, size, what)
        super().__init__(pool or BlockPool(slots, columns))
        if pool is None:
            self.pool.states = states
        try:
            self.allocate(self.pool.blocks)
        except MemoryError:
            raise EngineError(f"{what} needs {size / 1e9:.1f} GB and does not fit: lower --context") from None

    def connect(self, attach: Attach) -> None:
        """Call `attach` now and whenever the memory changes."""
        self._attach = attach
        attach(self.pool.tables, self.keys, self.values)

    @property
    def bytes(self) -> int:
        """Memory of all blocks, and of one recurrent state per slot."""
        return sum(blocks.nbytes for blocks in self._blocks) + self.slots * self.state_bytes

    @property
    def state_bytes(self) -> int:
        """Memory of one recurrent state of one slot. Some more are kept after a pass over several tokens."""
        return self.states.bytes if self.states else 0

    def allocate(self, blocks: int) -> None:
        """Have memory for blocks, which takes it when they are first written to."""

        def made(layers: int, heads: int, size: int) -> Tensor:
            return lazy_zeros((layers, blocks, heads, BLOCK, size), _CPU, torch.float16)

        self._blocks, self.keys, self.values = grouped(self._shapes, made)
        self._attach(self.pool.tables, self.keys, self.values)

    def copy(self, source: int, target: int, count: int) -> None:
        """Copy the first columns of a block."""
        for blocks in self._blocks:
            array = blocks.numpy()
            array[:, target, :, :count] = array[:, source, :, :count]

    def clear(self, slot: int) -> None:
        """Forget a slot. Kernels read no column that a token does not see, so what is no number may stay."""
        if self.states:
            self.states.give(slot, {})

    def place(self, slot: int, start: int, count: int) -> Any:
        """Index of columns of a slot in the keys or values of a layer."""
        return self._index(slot, range(start, start + count))

    def seen(self, stored: Tensor, slots: Tensor, length: int) -> Tensor:
        """The first columns of slots [B] in the keys or values of a layer, [B, G, length, D]."""
        tables = torch.from_numpy(self.pool.tables)[slots, : -(-length // BLOCK)]
        return stored[tables.long()].transpose(1, 2).flatten(2, 3)[:, :, :length]

    def keep(self, slots: Tensor, starts: Tensor, path: Tensor) -> None:
        """As `KVCache.keep`."""
        for slot, start, offsets in zip(slots.tolist(), starts.tolist(), path.tolist(), strict=True):
            sources = [min(start + offset, self.columns - 1) for offset in offsets]
            self.move(slot, sources[: self.columns - 1 - start], start + 1)

    def move(self, slot: int, sources: Sequence[int], target: int) -> None:
        """Copy the columns `sources` of a slot to `target` and the columns after it."""
        froms, to = self._index(slot, sources), self._index(slot, range(target, target + len(sources)))
        for blocks in self._blocks:
            array = blocks.numpy()
            array[:, *to] = array[:, *froms]

    def _index(self, slot: int, columns: Sequence[int]) -> tuple[Any, slice, Any]:
        places = np.asarray(columns)
        return self.pool.tables[slot][places // BLOCK], slice(None), places % BLOCK
