"""KV cache of the packed kernels, which read keys and values by block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.cache.block_pool import BlockPool, States
from specchat.engine.cache.kv_cache import LayerCache, Shapes
from specchat.engine.cache.prefix_tree import BLOCK
from specchat.engine.device.device import require_memory

TYPE = torch.float16
"""Of keys and values."""
Attach = Callable[[NDArray[np.int32], Sequence[Tensor], Sequence[Tensor]], None]
"""Called with the tables of the pool [slots, width], keys and values."""


def _nowhere(*_: object) -> None:
    """Before a decoder is connected."""


class PagedCache(LayerCache):
    """Tensors [blocks, G, BLOCK, D], float16, of keys and of values, one pair per layer; arguments as for `LayerCache`.

    In memory keys are [blocks, G, D, BLOCK]: attention computes the scores of neighbouring columns together.
    Rolling back shortens a length (`SequenceState.cached`) and moves no data.

    Raises:
        EngineError: it does not fit into memory.
    """

    def __init__(
        self, shapes: Shapes, slots: int, columns: int, states: States | None, pool: BlockPool | None = None
    ) -> None:
        super().__init__(shapes, slots, columns, torch.device("cpu"), TYPE, states, pool)
        require_memory(self._device, columns * self.column_bytes, f"a cache for a text of {columns} tokens")
        self._attach: Attach = _nowhere
        try:
            self.allocate(self.pool.blocks)
        except MemoryError:
            raise self._shortage() from None

    def connect(self, attach: Attach) -> None:
        """Call `attach` now and whenever the memory changes."""
        self._attach = attach
        attach(self.pool.tables, [keys.mT for keys in self.keys], self.values)

    @property
    def bytes(self) -> int:
        """Memory of all blocks, and of one recurrent state per slot."""
        return sum(blocks.nbytes for blocks in self._blocks) + self.slots * self.state_bytes

    def allocate(self, blocks: int) -> None:
        """Have memory for blocks, which takes it when they are first written to."""
        self._blocks, self.keys, self.values = self._by_block(blocks, by_dimension=True)
        self.memory = [each.movedim((1, 3), (0, 1)) for each in self._blocks]
        self.connect(self._attach)

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
