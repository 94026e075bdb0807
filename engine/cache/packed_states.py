"""States of recurrent layers on the packed kernels: one stored state per slot, and the updates of the tokens after it.

A pass brings the stored state to its first token by the updates, which repeats no pass of the network, and stores it
where no rollback reaches any more. Rejected tokens are only in updates, which the next pass overwrites.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from specchat.engine.cache.kv_cache import lazy_zeros
from specchat.engine.cache.recurrent_states import SNAPSHOTS
from specchat.engine.device.device import require_memory
from specchat.engine.request import MAX_GAMMA

_ROLLBACK = MAX_GAMMA + 8
"""Tokens before a pass that can be taken back: a draft model feeds a whole draft token by token."""
KEPT = 64
"""Updates per slot: of those tokens, of a pass over a draft, and of the inputs of a convolution before them."""
_CPU = torch.device("cpu")


@dataclass(slots=True)
class _Snapshot:
    """State of a slot: the stored one at length `base`, and the updates of the tokens around it."""

    base: int
    state: NDArray[np.float32]
    updates: NDArray[np.float32]
    """[layers, KEPT, update]"""


@dataclass(slots=True)
class _Slot:
    base: int = 0
    """Length of the text that the stored state has read."""
    end: int = 0
    """Length of the text whose updates are known."""
    prompt: int = 0
    """End of the chunk of a prompt that was read last, until a round begins."""
    snapshots: dict[int, _Snapshot] = field(default_factory=dict)


class PackedStates:
    """States of all slots.

    Args:
        layers: number of recurrent layers.
        sizes: floats of a state of a layer, and of the update of a token.
        convolution: inputs of a convolution.
        slots: sequences that fit at once.

    Raises:
        EngineError: they do not fit into memory.
    """

    def __init__(self, layers: int, sizes: tuple[int, int], convolution: int, slots: int) -> None:
        state, update = sizes
        self.bytes = 4 * layers * (state + KEPT * update)
        """Memory of one slot, without snapshots."""
        require_memory(_CPU, slots * self.bytes, f"the recurrent states of {slots} replies")
        self.stored = lazy_zeros((slots, layers, state), _CPU, torch.float32)
        self.updates = lazy_zeros((slots, layers, KEPT, update), _CPU, torch.float32)
        self._reach = KEPT - convolution
        self._slots = [_Slot() for _ in range(slots)]

    def reusable(self, slot: int, length: int) -> int:
        """Longest length up to `length` whose state is known."""
        known = self._slots[slot]
        if known.base <= length:
            return min(length, known.end)
        return max((n for n in known.snapshots if n <= length), default=0)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the state at `length`, which must be known, and share the snapshots before it."""
        known = self._slots[source]
        here = self._saved(source) if known.base <= length <= known.end else known.snapshots[length]
        self._slots[target] = _Slot(snapshots={n: each for n, each in known.snapshots.items() if n <= length})
        self._restore(target, here, length)

    def clear(self, slot: int) -> None:
        """Forget a slot."""
        self._slots[slot] = _Slot()

    def prefill(self, slots: Sequence[int], starts: Sequence[int], counts: Sequence[int]) -> list[tuple[int, int]]:
        """As `passing`, for a chunk of accepted text, which becomes the stored state: where a new prompt goes on from
        becomes a snapshot."""
        for slot, start, count in zip(slots, starts, counts, strict=True):
            known = self._slots[slot]
            if count > MAX_GAMMA and start != known.prompt and known.base <= start <= known.end:
                self._snapshot(slot, start)
            known.prompt = start + count
        return self.passing(slots, starts, counts, [start + count for start, count in zip(starts, counts, strict=True)])

    def score(self, slots: Sequence[int], starts: Sequence[int], counts: Sequence[int]) -> list[tuple[int, int]]:
        """As `passing`, where nothing before a row's start is taken back; the end of its prompt becomes a snapshot."""
        for slot, start in zip(slots, starts, strict=True):
            known = self._slots[slot]
            if known.prompt:
                if start == known.prompt and start <= known.end:
                    self._snapshot(slot, start)
                known.prompt = 0
        return self.passing(slots, starts, counts, starts)

    def forward(self, slots: Sequence[int], starts: Sequence[int], counts: Sequence[int]) -> list[tuple[int, int]]:
        """As `passing`, where drafted tokens before a row's start may be taken back."""
        return self.passing(slots, starts, counts, [start - _ROLLBACK for start in starts])

    def passing(
        self, slots: Sequence[int], starts: Sequence[int], counts: Sequence[int], commits: Sequence[int]
    ) -> list[tuple[int, int]]:
        """Begin a pass: length of each row's stored state, and its length after the pass.

        Args:
            slots: [B].
            starts: [B], tokens before the pass; later ones are dropped.
            counts: [B], tokens of the pass.
            commits: [B], length after the pass; larger where updates would be lost.
        """
        lengths = []
        for slot, start, count, commit in zip(slots, starts, counts, commits, strict=True):
            known, end = self._slots[slot], start + count
            if not known.base <= start <= known.end:
                if start in known.snapshots:
                    self._restore(slot, known.snapshots[start], start)
                else:
                    assert not start, f"the state of slot {slot} after {start} tokens is not known"
                    known.base = 0
            known.snapshots = {n: each for n, each in known.snapshots.items() if n <= start}
            after = max(known.base, commit, end - self._reach)
            lengths.append((known.base, after))
            known.base, known.end = after, end
        return lengths

    def _snapshot(self, slot: int, length: int) -> None:
        """Keep the state at `length` for other prompts, and the latest others."""
        known = self._slots[slot]
        if length:
            kept = sorted({**known.snapshots, length: self._saved(slot)}.items())
            known.snapshots = dict(kept[-SNAPSHOTS:])

    def _saved(self, slot: int) -> _Snapshot:
        stored, updates = self.stored.numpy()[slot], self.updates.numpy()[slot]
        return _Snapshot(self._slots[slot].base, stored.copy(), updates.copy())

    def _restore(self, slot: int, saved: _Snapshot, length: int) -> None:
        self.stored.numpy()[slot], self.updates.numpy()[slot] = saved.state, saved.updates
        self._slots[slot].base, self._slots[slot].end = saved.base, length
