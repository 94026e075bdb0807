"""Keys and values of every slot, preallocated; rolling back is forgetting a length.

Nothing here knows which positions are valid: `engine.row.Row.cached` does. A pass writes at the positions it is given
and attends to positions up to its own, so what lies beyond a row's length is masked, and later overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


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
        # Zeros, not empty: a masked position still multiplies its value by 0, and 0 x NaN is NaN.
        self.keys = [torch.zeros(slots, h, columns, d, device=device, dtype=dtype) for h, d, _, _ in shapes]
        self.values = [torch.zeros(slots, h, columns, d, device=device, dtype=dtype) for _, _, h, d in shapes]

    @property
    def bytes(self) -> int:
        """Memory of all slots together."""
        return sum(t.nbytes for t in (*self.keys, *self.values))

    def copy(self, source: int, target: int, length: int) -> None:
        """Give slot `target` the first `length` positions of slot `source`."""
        for tensor in (*self.keys, *self.values):
            tensor[target, :, :length] = tensor[source, :, :length]

    def clear(self, slot: int) -> None:
        """Zero a slot (after a NaN, which would outlive any mask)."""
        for tensor in (*self.keys, *self.values):
            tensor[slot] = 0


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
        index = torch.tensor(slots, device=positions.device)
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
