"""Keys and values of every slot, preallocated; rolling back is forgetting a length.

Nothing here knows which positions are valid: `engine.row.Row.cached` does. A pass writes at the positions it is given
and attends to positions up to its own, so what lies beyond a row's length is masked, and later overwritten.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import torch
from torch import Tensor

from engine.to_device import to_device


class SlotCache:
    """Tensors [slots, heads, columns, head size] of keys and of values, one pair per layer.

    Args:
        shapes: (key heads, key head size, value heads, value head size) of each layer.
        slots: rows.
        columns: positions per row.
        device: where they live.
        dtype: of keys and values.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, int, int, int]],
        slots: int,
        columns: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.slots = slots
        self.columns = columns

        def blocks(sizes: Iterable[tuple[int, int]]) -> list[Tensor]:
            # Zeros, not empty: a masked position still multiplies its value by 0, and 0 x NaN is NaN.
            return [
                torch.zeros(len(list(alike)), slots, h, columns, d, device=device, dtype=dtype)
                for (h, d), alike in groupby(sizes)
            ]

        # Neighbouring layers of one shape are one tensor, so that what is done to all of them takes one operation.
        keys, values = blocks((h, d) for h, d, _, _ in shapes), blocks((h, d) for _, _, h, d in shapes)
        self._blocks = [*keys, *values]
        self.keys = [layer for block in keys for layer in block]
        self.values = [layer for block in values for layer in block]

    @property
    def bytes(self) -> int:
        """Memory of all slots together."""
        return sum(block.nbytes for block in self._blocks)

    def copy(self, source: int, target: int, length: int) -> None:
        """Give slot `target` the first `length` positions of slot `source`."""
        for block in self._blocks:
            block[:, target, :, :length] = block[:, source, :, :length]

    def clear(self, slot: int) -> None:
        """Zero a slot (after a NaN, which would outlive any mask)."""
        for block in self._blocks:
            block[:, slot] = 0

    @torch.inference_mode()
    def keep(self, slots: Sequence[int], starts: Sequence[int], path: Tensor) -> None:
        """Bring the tokens of a path, written by one pass in any order, to the positions where they belong.

        Args:
            slots: the slot of each row [B].
            starts: the first position that each row's pass wrote, which stays.
            path: [B, D], int64, on the device: how far behind that each of the next D positions was written.
        """
        slot, start = to_device([slots, starts], path.device)[:, :, None]
        to = start + torch.arange(1, path.shape[1] + 1, device=path.device)
        for block in self._blocks:
            block[:, slot, :, to] = block[:, slot, :, start + path]


class Pass:
    """The cache as one forward pass sees it: what transformers' attention layers call as `past_key_values`.

    Args:
        cache: the slots.
        slots: the slot of each row [B], on the host.
        starts: the first position each row writes, on the host.
        positions: positions the pass writes [B, T], on the device.
    """

    is_compileable = False

    def __init__(self, cache: SlotCache, slots: Sequence[int], starts: Sequence[int], positions: Tensor) -> None:
        self._cache = cache
        self._start = starts[0] if len(starts) == 1 else None
        self._positions = positions
        self._length = max(starts) + positions.shape[1]
        index = to_device(slots, positions.device)
        self._row_index = index[:, None]
        # Neighbouring slots are read where they are; scattered ones have to be gathered.
        together = list(slots) == list(range(slots[0], slots[0] + len(slots)))
        self._rows: slice | Tensor = slice(slots[0], slots[0] + len(slots)) if together else index

    @property
    def length(self) -> int:
        """Columns the pass attends over (S)."""
        return self._length

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write this pass's keys and values [B, heads, T, size] of one layer; return the rows' first S columns."""
        return (
            self._write(self._cache.keys[layer_idx], key),
            self._write(self._cache.values[layer_idx], value),
        )

    def _write(self, stored: Tensor, new: Tensor) -> Tensor:
        if self._start is not None:
            stored[self._rows, :, self._start : self._start + new.shape[2]] = new
        else:
            stored[self._row_index, :, self._positions] = new.transpose(1, 2)
        return stored[self._rows, :, : self._length]

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Tokens before this pass; only asked for where positions are not given, and they always are."""
        return self._length - self._positions.shape[1]
