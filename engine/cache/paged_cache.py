"""KV cache of the packed kernels, which read keys and values by block."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specchat.engine.cache.block_pool import BlockPool
from specchat.engine.cache.kv_cache import LayerCache, Shapes
from specchat.engine.cache.prefix_tree import BLOCK
from specchat.engine.cache.state_store import StateStore
from specchat.engine.device.device import require_memory

TYPES = {"f16": torch.float16, "q8": torch.int8}
"""Types of keys and values by their names in `engine.config.CACHE_TYPES`."""
Attach = Callable[..., None]
"""Called with the tables of the pool [slots, width], keys and values, and the scales of both if they have some."""
Move = Callable[[int, Sequence[int], int], None]
"""Copies columns of a slot, in ascending order, to one and the columns after it."""


def _nowhere(*_: object) -> None:
    """Before a decoder is connected."""


class PagedCache(LayerCache):
    """Tensors [blocks, G, BLOCK, D] of keys and of values, one pair per layer.

    In memory keys are [blocks, G, D, BLOCK]: attention computes the scores of neighbouring columns together.
    8-bit keys and values are codes with a scale per column and head, which costs attention one product per column; with
    scales per 32 dimensions, or per dimension, as many greedy tokens differ from the ones with float16.
    Rolling back shortens a length (`SequenceState.cached`) and moves no data. Kernels read no column that a token does
    not see, so what is no number may stay after `clear`.

    Args:
        cache_type: one of `TYPES`. Others as for `LayerCache`.

    Raises:
        EngineError: it does not fit into memory.
    """

    def __init__(
        self,
        shapes: Shapes,
        slots: int,
        columns: int,
        states: StateStore | None,
        pool: BlockPool | None = None,
        cache_type: str = "f16",
    ) -> None:
        super().__init__(shapes, slots, columns, torch.device("cpu"), TYPES[cache_type], states=states, pool=pool)

    def _create(self) -> None:
        require_memory(self._device, self.columns * self.column_bytes, f"a cache for a text of {self.columns} tokens")
        self._attach: Attach = _nowhere
        self.move: Move = _nowhere
        self.allocate(self.pool.blocks)

    def connect(self, attach: Attach, move: Move) -> None:
        """Call `attach` now and whenever the memory changes, and `move` to copy columns."""
        self._attach, self.move = attach, move
        attach(self.pool.tables, [keys.mT for keys in self.keys], self.values, *self._scales)

    @property
    def bytes(self) -> int:
        """Memory of all blocks, and of one recurrent state per slot."""
        return sum(blocks.nbytes for blocks in self._blocks) + self.slots * self.state_bytes

    def allocate(self, blocks: int) -> None:
        """Have memory for blocks, which takes it when they are first written to."""
        made = self._zeros(self._shapes, self._dtype, blocks, BLOCK, by_dimension=True)
        self._blocks, self.keys, self.values = made
        self._scales: list[list[Tensor]] = []
        if self._dtype is torch.int8:
            single = [(keys, 1, values, 1) for keys, _, values, _ in self._shapes]
            scales, *self._scales = self._zeros(single, torch.float32, blocks, BLOCK)
            self._blocks += scales
        self.memory = [each.movedim((1, 3), (0, 1)) for each in self._blocks]
        self.connect(self._attach, self.move)

    def seen(self, layer: int, slots: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values [B, G, length, D] of a layer in the first columns of slots [B]."""
        tables = torch.from_numpy(self.pool.tables)[slots, : -(-length // BLOCK)].long()

        def rows(stored: Tensor) -> Tensor:
            return stored[tables].transpose(1, 2).flatten(2, 3)[:, :, :length]

        keys, values = rows(self.keys[layer]), rows(self.values[layer])
        if self._scales:
            keys, values = (x * rows(scale[layer]) for x, scale in zip((keys, values), self._scales, strict=True))
        return keys, values
