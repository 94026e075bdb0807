"""Last inputs of short convolutions by slot, so that a rollback is a length for them too.

After n tokens such a layer knows its inputs at the last taps - 1 positions. A ring holds those of more positions: a
pass may start again at an earlier length, and what it writes replaces the inputs of rejected tokens. The inputs at the
ends of prompts and replies stay as snapshots, from which another prompt with the same beginning continues.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specchat.engine.cache.recurrent_states import SNAPSHOTS
from specchat.engine.request import MAX_GAMMA

_RING = 3 * MAX_GAMMA
"""Positions held: of a whole draft, of the tokens that a draft model takes back and feeds again, and before them."""


@dataclass(slots=True)
class _Slot:
    first: int = 0
    """Shortest length whose inputs are in the ring."""
    end: int = 0
    """Longest such length."""
    snapshots: dict[int, Tensor] = field(default_factory=dict)
    """By length: inputs [layers, taps - 1, hidden]."""
    reading: int | None = None
    """End of the latest chunk of a prompt that is being read."""


class ConvolutionInputs:
    """Rings of all slots and layers.

    Args:
        layers: number of layers of the model.
        convolutions: those with a short convolution.
        slots: sequences that fit at once.
        taps: inputs that a convolution reads.
        hidden: channels.
    """

    def __init__(self, layers: int, convolutions: Collection[int], slots: int, taps: int, hidden: int) -> None:
        self._inputs = torch.zeros(len(convolutions), slots, _RING, hidden)
        rings = iter(self._inputs)
        self.rings: Sequence[Tensor | None] = [next(rings) if i in convolutions else None for i in range(layers)]
        """float32 [slots, ring, hidden] of each layer with a convolution; the input of position p is row p % ring."""
        self._before = taps - 1
        self._slots = [_Slot() for _ in range(slots)]

    @property
    def bytes(self) -> int:
        """Memory of one slot."""
        return self._inputs[:, 0].nbytes

    def reusable(self, slot: int, length: int) -> int:
        """Longest length up to `length` whose inputs are known."""
        known = self._slots[slot]
        recent = (min(known.end, length),) if known.first <= length else ()
        return max((*recent, *(n for n in known.snapshots if n <= length)), default=0)

    def copy(self, source: int, target: int, length: int) -> None:
        """Let slot `target` know what `source` knows up to `length`."""
        known = self._slots[source]
        kept = {n: inputs for n, inputs in known.snapshots.items() if n <= length} | {length: self._at(source, length)}
        self._slots[target] = _Slot(snapshots=dict(sorted(kept.items())[-SNAPSHOTS:]))

    def clear(self, slot: int) -> None:
        """Forget a slot."""
        self._slots[slot] = _Slot()

    def begin(self, slot: int, start: int, tokens: int, *, prompt: bool) -> None:
        """A pass over so many tokens of a slot continues from `start`; the inputs of later positions are forgotten.

        Args:
            prompt: whether they are a chunk of a prompt. The inputs before its first chunk, and after its last one,
                become snapshots.
        """
        known = self._slots[slot]
        known.snapshots = {n: inputs for n, inputs in known.snapshots.items() if n <= start}
        if start and prompt == (start != known.reading):
            known.snapshots = dict([*(known.snapshots | {start: self._at(slot, start)}).items()][-SNAPSHOTS:])
        if not known.first <= start <= known.end:
            self._inputs[:, slot, self._rows(start)] = self._at(slot, start)
            known.first = start
        known.end = start + tokens
        known.first = max(known.first, known.end - _RING + self._before)
        known.reading = known.end if prompt else None

    def _at(self, slot: int, length: int) -> Tensor:
        """Inputs before `length` [layers, taps - 1, hidden]."""
        known = self._slots[slot]
        if known.first <= length <= known.end:
            return self._inputs[:, slot, self._rows(length)]
        assert not length or length in known.snapshots, f"the inputs of slot {slot} before {length} are not known"
        return known.snapshots.get(length, self._inputs.new_zeros(()))

    def _rows(self, length: int) -> list[int]:
        return [position % _RING for position in range(length - self._before, length)]
