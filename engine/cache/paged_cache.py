"""Caches of the packed kernels: keys and values, which they read by block, and states of recurrent layers, per slot.

A short convolution has its last inputs, a delta net also a state. A ring holds the updates of the latest tokens: a pass
may start again at an earlier length, and overwrites the updates of rejected tokens. The state is stored at one length;
the kernels apply the later updates to it at the beginning of a pass, without running the network again. The states at
the ends of prompts and replies stay as snapshots, from which another prompt with the same beginning continues.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.cache.block_pool import BlockPool, StateStore
from specchat.engine.cache.kv_cache import LayerCache, Shapes, lazy_zeros
from specchat.engine.cache.prefix_tree import BLOCK
from specchat.engine.device.device import require_memory
from specchat.engine.request import MAX_GAMMA

_RING = 3 * MAX_GAMMA
"""Positions held: of a whole draft, of the tokens that a draft model takes back and feeds again, and before them."""
ROLLBACK = MAX_GAMMA + 3
"""Tokens before a pass of a draft model that may be taken back: a whole draft, and the last two tokens fed again."""
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The state of a text."""

    base: int
    """Length at which `state` is."""
    state: Tensor
    """[layers, state]"""
    updates: Tensor
    """[layers, n, update], of the inputs of convolutions before `base`, and of the tokens after it."""


class PackedStates(StateStore):
    """Rings and states of all slots and recurrent layers.

    Args:
        layers: number of recurrent layers.
        slots: sequences that fit at once.
        taps: inputs that a convolution reads.
        sizes: numbers that a token adds to what a layer knows, and numbers of its state.

    Raises:
        EngineError: they do not fit into memory.
    """

    def __init__(self, layers: int, slots: int, taps: int, sizes: tuple[int, int]) -> None:
        super().__init__(slots)
        update, state = sizes
        self.bytes = 4 * layers * (_RING * update + state)
        require_memory(_CPU, slots * self.bytes, f"the recurrent states of {slots} replies")
        self.rings = lazy_zeros((layers, slots, _RING, update), _CPU, torch.float32)
        """The update of the token at position p is row p % ring."""
        self.stored = lazy_zeros((layers, slots, state), _CPU, torch.float32)
        """The state after `lengths` tokens."""
        self.lengths = np.zeros(slots, np.int32)
        """Shortest length of each slot that is known; the kernels set it after a pass."""
        self.commits = np.zeros(slots, np.int32)
        """Shortest length of each slot that is known after the running pass."""
        self._before = taps - 1
        self._ends = [0] * slots
        """Longest length of each slot that is known."""

    @property
    def tensors(self) -> tuple[Tensor, Tensor, NDArray[np.int32], NDArray[np.int32]]:
        """Arguments for `engine.kernels.decoder.Decoder.attach_states`."""
        return self.rings, self.stored, self.lengths, self.commits

    def at(self, slot: int, length: int) -> _Snapshot | None:
        """The state after `length` tokens; None if it is not known."""
        base = int(self.lengths[slot])
        if not base <= length <= self._ends[slot]:
            return self._snapshots[slot].get(length)
        base = base if self.stored.numel() else length
        return _Snapshot(base, self.stored[:, slot].clone(), self.rings[:, slot, self._rows(base, length)])

    def _latest(self, slot: int, length: int) -> int:
        return min(self._ends[slot], length) if self.lengths[slot] <= length else 0

    def give(self, slot: int, states: Mapping[int, _Snapshot]) -> None:
        """Let a slot know these states and nothing else."""
        super().give(slot, states)
        self._ends[slot] = self.lengths[slot] = 0

    def begin(self, slot: int, start: int, tokens: int, *, final: int, prompt: bool = False) -> None:
        """Prepare a pass over `tokens` tokens of a slot from `start` on; what later positions added is forgotten.

        Args:
            final: length below which no token is taken back after the pass.
            prompt: whether they are a chunk of a prompt. The state before its first chunk, and after its last one,
                becomes a snapshot.
        """
        self._drop_snapshots(slot, start)
        if start and prompt == (start != self._reading[slot]):
            self._keep(slot, [start])
        base, end = int(self.lengths[slot]), start + tokens
        if not base <= start <= self._ends[slot]:
            base = self._restore(slot, start)
        self._ends[slot] = end
        self.commits[slot] = max(base, end - _RING + self._before, final if self.stored.numel() else 0)
        self._reading[slot] = end if prompt else None

    def _restore(self, slot: int, length: int) -> int:
        """Bring a slot back to a snapshot, or to the beginning; gives the length of the stored state."""
        self.lengths[slot] = 0
        if not length:
            return 0
        saved: _Snapshot = self._snapshots[slot][length]
        self.stored[:, slot], self.rings[:, slot, self._rows(saved.base, length)] = saved.state, saved.updates
        self.lengths[slot] = saved.base
        return saved.base

    def _rows(self, base: int, length: int) -> list[int]:
        return [position % _RING for position in range(base - self._before, length)]


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
