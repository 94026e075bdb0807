"""KV cache of a backend that reads rows: keys and values of a slot are in consecutive columns.

The valid length of a slot is kept in `engine.sequence.sequence.SequenceState.cached`. A pass writes at given positions
and attends to positions up to its own, so entries beyond a sequence's length are masked, and later overwritten: rolling
back shortens a length and moves no data. Texts that stay for later prompts are copied to blocks (`BlockStore`), since a
pass that gathers blocks costs more than such a copy for every prompt.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from mmap import MAP_ANONYMOUS, MAP_SHARED, mmap
from typing import ClassVar

import torch
from torch import Tensor

from specchat.engine.cache.block_pool import BlockPool, BlockStore, StateStore, as_array
from specchat.engine.cache.prefix_tree import BLOCK
from specchat.engine.device.device import require_memory, to_device
from specchat.engine.errors import EngineError

Shapes = Sequence[tuple[int, int, int, int]]
"""(G, D of keys, G, D of values) of each layer; zeros for a layer without keys and values."""


_UNRESERVED = {"flags": MAP_SHARED | MAP_ANONYMOUS | 0x4000} if sys.platform == "linux" else {}
"""Flags with `MAP_NORESERVE`, which Python has no name for."""


def lazy_zeros(shape: Sequence[int], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Zeros; on a CPU pages that take memory, and time, when they are first written to.

    Raises:
        MemoryError: the system does not give that much; Linux gives any amount, if it is not told otherwise.
    """
    if device.type != "cpu" or not prod(shape):
        return torch.zeros(*shape, device=device, dtype=dtype)
    try:
        pages = mmap(-1, prod(shape) * dtype.itemsize, **_UNRESERVED)
    except OSError as error:
        raise MemoryError from error
    return torch.frombuffer(pages, dtype=dtype).view(*shape)


def packed_blocks(blocks: int, heads: int, size: int) -> tuple[Tensor, Tensor]:
    """Keys [blocks, heads, size, `BLOCK`] and values [blocks, heads, `BLOCK`, size] of a layer on the kernels."""
    shapes, cpu = ((size, BLOCK), (BLOCK, size)), torch.device("cpu")
    keys, values = (lazy_zeros((blocks, heads, *shape), cpu, torch.float16) for shape in shapes)
    return keys, values


class LayerCache(BlockStore):
    """Keys and values of all layers of a model: sizes, and memory by block. Subclasses have the tensors.

    Args:
        shapes: of the layers.
        slots: sequences that fit at once.
        columns: positions per slot.
        device: of the tensors.
        dtype: of keys and values.
        states: of recurrent layers, if any.
        pool: of the cache's blocks; a new one if None.

    Raises:
        EngineError: there is too little memory.
    """

    def __init__(
        self,
        shapes: Shapes,
        slots: int,
        columns: int,
        device: torch.device,
        dtype: torch.dtype,
        *,
        states: StateStore | None = None,
        pool: BlockPool | None = None,
    ) -> None:
        self.slots, self.columns, self.states = slots, columns, states
        self._shapes, self._device, self._dtype = shapes, device, dtype
        self.column_bytes = column_bytes(shapes, dtype)
        super().__init__(pool or BlockPool(slots, columns))
        if states:
            self.pool.all_states.append(states)
        if pool is None:
            self.pool.states = states
        try:
            self._create()
        except (RuntimeError, MemoryError):
            size, what = slots * columns * self.column_bytes, f"a cache of {slots} x {columns} tokens"
            raise EngineError(f"{what} needs {size / 1e9:.1f} GB and does not fit: lower --context") from None

    def _create(self) -> None:
        """Make the tensors that the cache begins with."""
        raise NotImplementedError

    @property
    def state_bytes(self) -> int:
        """Memory of one recurrent state of one slot. Some more are kept after a pass over several tokens."""
        return self.states.bytes if self.states else 0

    def clear(self, slot: int) -> None:
        """Forget a slot after something that is not a number."""
        if self.states:
            self.states.give(slot, {})

    def _zeros(
        self, shapes: Shapes, dtype: torch.dtype, rows: int, columns: int, *, by_dimension: bool = False
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Keys and values of all layers, zeros: not empty, since a masked position still multiplies its value by 0, and
        0 x NaN is NaN.

        Args:
            shapes: of the layers.
            dtype: of the tensors.
            rows: slots or blocks.
            columns: of each.
            by_dimension: whether keys are [..., D, columns] in memory.

        Returns:
            Tensors [layers, rows, G, columns, D] for neighbouring layers of one shape, so that copying a column takes
            one operation for all; of each layer its keys, and its values.
        """
        sizes_of_keys, sizes_of_values = [(h, d) for h, d, _, _ in shapes], [(h, d) for _, _, h, d in shapes]
        made: list[Tensor] = []
        for sizes, transposed in ((sizes_of_keys, by_dimension), (sizes_of_values, False)):
            for (heads, size), alike in groupby(sizes):
                last = (size, columns) if transposed else (columns, size)
                tensor = lazy_zeros((len(list(alike)), rows, heads, *last), self._device, dtype)
                made.append(tensor.mT if transposed else tensor)
        layers = [layer for tensor in made for layer in tensor]
        return made, layers[: len(shapes)], layers[len(shapes) :]


def column_bytes(shapes: Shapes, dtype: torch.dtype) -> int:
    """Memory of keys and values of a token in all layers, with the scales of 8-bit ones."""
    scale = 4 if dtype is torch.int8 else 0
    return sum(kh * (kd * dtype.itemsize + scale) + vh * (vd * dtype.itemsize + scale) for kh, kd, vh, vd in shapes)


class KVCache(LayerCache):
    """Tensors [slots, G, columns, D] of keys and of values, one pair per layer."""

    def _create(self) -> None:
        slots, columns = self.slots, self.columns
        require_memory(self._device, slots * columns * self.column_bytes, f"a cache of {slots} x {columns} tokens")
        self._rows, self.keys, self.values = self._zeros(self._shapes, self._dtype, slots, columns)
        self._saved: list[Tensor] = []
        """[layers, blocks, G, BLOCK, D] as `_rows`, once there are blocks."""

    @property
    def bytes(self) -> int:
        """Memory of all slots, each with one recurrent state."""
        return sum(rows.nbytes for rows in self._rows) + self.slots * self.state_bytes

    def allocate(self, blocks: int) -> None:
        """Have memory for blocks, which takes it when they are first written to on a CPU."""
        self._saved, self.memory = [], ()
        self._saved = self._zeros(self._shapes, self._dtype, blocks, BLOCK)[0]
        self.memory = [each.movedim((1, 3), (0, 1)) for each in self._saved]

    def load(self, slot: int, length: int) -> None:
        """Copy the first columns of a slot from its blocks."""
        for start, block, columns in self.parts(slot, 0, length):
            for rows, saved in zip(map(as_array, self._rows), map(as_array, self._saved), strict=False):
                rows[:, slot, :, start : start + len(columns)] = saved[:, block, :, columns.start : columns.stop]

    def save(self, slot: int, start: int, end: int) -> None:
        """Copy columns of a slot to its blocks."""
        for first, block, columns in self.parts(slot, start, end):
            for rows, saved in zip(map(as_array, self._rows), map(as_array, self._saved), strict=False):
                saved[:, block, :, columns.start : columns.stop] = rows[:, slot, :, first : first + len(columns)]

    def clear(self, slot: int) -> None:
        """Zero a slot. Needed after a NaN, which a mask does not remove (0 x NaN is NaN)."""
        super().clear(slot)
        for rows in self._rows:
            rows[:, slot] = 0

    def seen(self, layer: int, slots: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values [B, G, length, D] of a layer in the first columns of slots [B]."""
        return self.keys[layer][slots, :, :length], self.values[layer][slots, :, :length]

    @torch.inference_mode()
    def keep(self, slots: Tensor, starts: Tensor, path: Tensor) -> None:
        """Move the accepted branch of a verified tree to consecutive positions.

        Args:
            slots: [B], int64, the slot of each row.
            starts: [B], int64, the first position that each row's pass wrote, which stays. The last column stands for
                no row: there nothing is kept that matters.
            path: [B, γ], int64: offset from `starts` at which each of the next γ positions was written.
        """
        slot, start = slots[:, None], starts[:, None]
        to = (start + torch.arange(1, path.shape[1] + 1, device=path.device)).clamp_(max=self.columns - 1)
        source = (start + path).clamp_(max=self.columns - 1)
        for rows in self._rows:
            rows[:, slot, :, to] = rows[:, slot, :, source]

    def move(self, slot: int, sources: Sequence[int], target: int) -> None:
        """Copy the columns `sources` of a slot to `target` and the columns after it."""
        end = target + len(sources)
        for rows in map(as_array, self._rows):
            rows[:, slot, :, target:end] = rows[:, slot][:, :, list(sources)]


class CacheView:
    """View of the KV cache for one forward pass, passed to transformers as `past_key_values`.

    Args:
        cache: the KV cache.
        slots: [B], the slot of each row, on the host.
        starts: [B], the first position each row writes, on the host.
        positions: [B, T], positions the pass writes, on the device.
        gathers: whether the model's attention takes keys and values by row; else rows that are no neighbours get the
            keys and values of all slots from the first to the last of them, uncopied.
    """

    is_compileable = False

    def __init__(
        self, cache: KVCache, slots: Sequence[int], starts: Sequence[int], positions: Tensor, *, gathers: bool
    ) -> None:
        self._cache = cache
        self._start = starts[0] if len(starts) == 1 else None
        self._positions = positions
        self.length = max(starts) + positions.shape[1]
        """S: columns the pass attends over."""
        self.slots = to_device(slots, positions.device)
        places = [slot - min(slots) for slot in slots]
        scattered = places != list(range(len(slots)))
        self.places = places if scattered and not gathers else []
        """Index of each row in the returned tensors, if the tensors have more slots than the pass has rows."""
        self._rows: slice | Tensor = self.slots if scattered and gathers else slice(min(slots), max(slots) + 1)

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write this pass's keys and values [B, G, T, D] of one layer; return S columns of the rows, or
        of all slots from the first of them to the last."""
        return self._write(self._cache.keys[layer_idx], key), self._write(self._cache.values[layer_idx], value)

    def _write(self, stored: Tensor, new: Tensor) -> Tensor:
        if self._start is not None:  # one row
            stored[self._rows, :, self._start : self._start + new.shape[2]] = new
        else:
            stored[self.slots[:, None], :, self._positions] = new.transpose(1, 2)
        return stored[self._rows, :, : self.length]

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Tokens before this pass; transformers asks only without position_ids, which are always given."""
        return self.length - self._positions.shape[1]


@dataclass(eq=False)
class LayerView:
    """View of some slots and the first columns of one layer's cache."""

    keys: Tensor
    """[slots, G, columns, D], the layer's whole cache."""
    values: Tensor
    slots: Tensor
    """[B], int64, the slot of each row; all of them in order, where there are as many rows as slots."""
    length: int
    """S, columns attended over."""
    positions: Tensor
    """[B, T], columns that the pass writes; they may lie beyond S."""
    whole: bool
    """Whether the whole cache is handed out."""
    is_compileable: ClassVar[bool] = False

    def update(self, key: Tensor, value: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write keys and values [B, G, T, D]; return the keys and values of the rows [B, G, S, D], or of all slots."""
        return self._write(self.keys, key), self._write(self.values, value)

    def _write(self, stored: Tensor, new: Tensor) -> Tensor:
        stored[self.slots[:, None], :, self.positions] = new.transpose(1, 2)
        if self.whole:
            return stored
        seen = stored[:, :, : self.length]
        return seen if len(self.slots) == len(stored) else seen.index_select(0, self.slots)

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Tokens before this pass; transformers asks only without position_ids, which are always given."""
        return self.length - self.positions.shape[1]


@dataclass(eq=False)
class StaticView:
    """View of some slots and the first columns of the KV cache, passed to transformers as `past_key_values`."""

    cache: KVCache
    slots: Tensor
    """[B], int64, the slot of each row; all of them in order, where there are as many rows as slots."""
    length: int
    """S, columns attended over."""
    positions: Tensor
    """[B, T], columns that the pass writes."""
    compiled: bool = False
    """Whether layers run compiled (`engine.backends.captured_passes`)."""
    whole: bool = False
    """Whether layers get the whole cache, for `engine.backends.cache_attention`."""
    is_compileable: ClassVar[bool] = False

    def layer(self, layer_idx: int) -> LayerView:
        """View of one layer."""
        keys, values = self.cache.keys[layer_idx], self.cache.values[layer_idx]
        return LayerView(keys, values, self.slots, self.length, self.positions, self.whole)

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write and return keys and values of layer `layer_idx` (`LayerView.update`)."""
        return self.layer(layer_idx).update(key, value)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens before this pass (`LayerView.get_seq_length`)."""
        return self.layer(layer_idx).get_seq_length()
