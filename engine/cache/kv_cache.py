"""KV cache: preallocated keys and values of every slot; rolling back shortens a length and moves no data.

The valid length of a slot is kept in `engine.sequence.sequence.SequenceState.cached`. A pass writes at given positions
and attends to positions up to its own, so entries beyond a sequence's length are masked, and later overwritten.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from math import prod
from mmap import mmap
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.device.device import require_memory, to_device
from specchat.engine.errors import EngineError


def lazy_zeros(shape: Sequence[int], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Zeros; on a CPU pages that take memory, and time, when they are first written to.

    Raises:
        MemoryError: the system does not give that much.
    """
    if device.type != "cpu" or not prod(shape):
        return torch.zeros(*shape, device=device, dtype=dtype)
    try:
        pages = mmap(-1, prod(shape) * dtype.itemsize)
    except OSError as error:
        raise MemoryError from error
    return torch.frombuffer(pages, dtype=dtype).view(*shape)


class States(Protocol):
    """What layers other than attention know of the text in each slot, besides keys and values."""

    @property
    def bytes(self) -> int:
        """Memory of one slot."""

    def reusable(self, slot: int, length: int) -> int:
        """Longest length up to `length` from which a text can continue."""

    def copy(self, source: int, target: int, length: int) -> None:
        """Let slot `target` know what `source` knows up to `length`."""

    def clear(self, slot: int) -> None:
        """Forget a slot."""


class KVCache:
    """Tensors [slots, G, columns, D] of keys and of values, one pair per layer.

    Args:
        shapes: (G, D of keys, G, D of values) of each layer; zeros for a layer without keys and values.
        slots: sequences that fit at once.
        columns: positions per slot.
        device: of the tensors.
        dtype: of keys and values.
        paged: whether the columns of all slots follow each other in memory, for `pages`; else those of one slot do.
        states: of recurrent layers, if any.

    Raises:
        EngineError: it does not fit into memory.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, int, int, int]],
        slots: int,
        columns: int,
        device: torch.device,
        dtype: torch.dtype,
        *,
        paged: bool = False,
        states: States | None = None,
    ) -> None:
        self.slots, self.columns, self.states = slots, columns, states

        def blocks(sizes: Iterable[tuple[int, int]]) -> list[Tensor]:
            # Zeros, not empty: a masked position still multiplies its value by 0, and 0 x NaN is NaN.
            made = []
            for (h, d), alike in groupby(sizes):
                first, second = (h, slots) if paged else (slots, h)
                block = lazy_zeros((len(list(alike)), first, second, columns, d), device, dtype)
                made.append(block.transpose(1, 2) if paged else block)
            return made

        size = slots * columns * sum(kh * kd + vh * vd for kh, kd, vh, vd in shapes) * dtype.itemsize
        require_memory(device, size, f"a cache of {slots} x {columns} tokens")
        # Neighbouring layers of one shape share one tensor, so that copying a slot takes one operation for all.
        try:
            keys, values = blocks((h, d) for h, d, _, _ in shapes), blocks((h, d) for _, _, h, d in shapes)
        except (RuntimeError, MemoryError):
            raise EngineError(
                f"a cache of {slots} x {columns} tokens needs {size / 1e9:.1f} GB and does not fit: lower --context"
            ) from None
        self._blocks = [*keys, *values]
        self.keys = [layer for block in keys for layer in block]
        self.values = [layer for block in values for layer in block]

    @property
    def bytes(self) -> int:
        """Memory of all slots, each with one recurrent state."""
        return sum(block.nbytes for block in self._blocks) + self.slots * self.state_bytes

    @property
    def state_bytes(self) -> int:
        """Memory of one recurrent state of one slot. Some more are kept after a pass over several tokens."""
        return self.states.bytes if self.states else 0

    def reusable(self, slot: int, length: int) -> int:
        """How many of a slot's first `length` tokens a prompt may continue from."""
        return self.states.reusable(slot, length) if self.states else length

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of slot `source` to slot `target`.

        On a CPU by numpy: torch shares even this out among threads, and waits for one that another program keeps busy.
        """
        for block in self._blocks:
            slots: Any = _as_array(block) if block.device.type == "cpu" else block
            slots[:, target, :, :length] = slots[:, source, :, :length]
        if self.states:
            self.states.copy(source, target, length)

    def clear(self, slot: int) -> None:
        """Zero a slot. Needed after a NaN, which a mask does not remove (0 x NaN is NaN)."""
        for block in self._blocks:
            block[:, slot] = 0
        if self.states:
            self.states.clear(slot)

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
        for block in self._blocks:
            block[:, slot, :, to] = block[:, slot, :, source]

    def move(self, slot: int, sources: Sequence[int], target: int) -> None:
        """Copy the columns `sources` of a slot to `target` and the columns after it; on the CPU.

        Indexing of numpy takes a fraction of the time of torch's, which shares even this out among threads.
        """
        end = target + len(sources)
        for block in self._blocks:
            columns = _as_array(block)[:, slot]
            columns[:, :, target:end] = columns[:, :, list(sources)]


def _as_array(block: Tensor) -> NDArray[Any]:
    """Memory of a tensor on the CPU; numpy knows no bfloat16, of which a value is two bytes to it."""
    return (block.view(torch.int16) if block.dtype is torch.bfloat16 else block).numpy()


def pages(stored: Tensor) -> Tensor:
    """Keys or values [slots, G, columns, D] of one layer of a paged cache as [1, G, slots x columns, D], uncopied."""
    slots, groups, columns, size = stored.shape
    return stored.transpose(0, 1).view(1, groups, slots * columns, size)


class CacheView:
    """View of the KV cache for one forward pass, passed to transformers as `past_key_values`.

    Args:
        cache: the KV cache.
        slots: [B], the slot of each row, on the host.
        starts: [B], the first position each row writes, on the host.
        positions: [B, T], positions the pass writes, on the device.
        gathers: whether the model's attention takes keys and values by row; else rows that are no neighbours get those
            of all slots from the first to the last of them, uncopied.
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
        """Where each row is among what is handed out, if that has more slots than the pass has rows."""
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
