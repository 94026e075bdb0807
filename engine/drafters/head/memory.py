"""What a draft head knows of every slot, and what it still has to read of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from specchat.engine.drafters.growing.scores import Scores
from specchat.engine.drafters.head.layer import HeadLayer
from specchat.engine.sequence.scheduler import common_prefix
from specchat.engine.sequence.sequence import SequenceState


@dataclass(slots=True)
class _Slot:
    tokens: list[int] = field(default_factory=list)
    """What is in the slot, while no row is."""
    row: SequenceState | None = None
    first: int = 0
    read: int = 0
    """Keys and values of the places from `first` up to `read` come from the target's states."""

    @property
    def content(self) -> list[int]:
        return self.tokens if self.row is None else self.row.tokens[: self.row.cached]

    def begins(self, end: int, window: int) -> int:
        """The first place still to be read, for a draft at `end` that looks back over a window."""
        least = max(end - window, 0)
        return max(self.read, least) if self.first <= least else least


class HeadMemory:
    """Which places of every slot the head has read.

    Place i stands for token i + 1 with the state that the target had at token i. The head has one layer, so a place's
    key and value depend on nothing but these two: places may be read in any order, and again.

    Args:
        layer: keeps states, keys and values.
        slots: as many as the target's cache has.
    """

    def __init__(self, layer: HeadLayer, slots: int) -> None:
        self._layer = layer
        self._slots = [_Slot() for _ in range(slots)]

    def admit(self, row: SequenceState) -> int:
        """Take a row in; how many of its tokens' states are known, here or in a slot they are copied from."""
        shared = [common_prefix(slot.content, row.tokens[: row.cached]) for slot in self._slots]
        source = max(range(len(shared)), key=lambda i: (shared[i], i == row.slot))
        known, slot = shared[source], self._slots[row.slot]
        if source != row.slot and known:
            self._layer.copy(source, row.slot, known)
            slot.first = slot.read = 0
        slot.row = row
        slot.read = min(slot.read, max(known - 1, 0))
        slot.first = min(slot.first, slot.read)
        return known

    def reuse_prefix(self, row: SequenceState, source: int, length: int) -> int:
        """Take over what slot `source` knows of the row's first `length` tokens; how many of them are known then."""
        known = common_prefix(self._slots[source].content, row.tokens[:length])
        if known > row.cached:
            self._layer.copy(source, row.slot, known)
        return max(known, row.cached)

    def absorb(
        self, rows: Sequence[SequenceState], tapped: Tensor | Sequence[Tensor], lengths: Sequence[int] | None = None
    ) -> None:
        """Keep the states of the tokens that the target has just read from `row.cached` on.

        Args:
            rows: B.
            tapped: the target's hidden states [B, T, taps x d], or of each row its own.
            lengths: how many of each row's T tokens are wanted, from the first on; all if not given.
        """
        self._layer.absorb([row.slot for row in rows], [row.cached for row in rows], tapped, lengths)

    def release(self, row: SequenceState) -> None:
        """The row leaves; the state of it stays."""
        slot = self._slots[row.slot]
        slot.tokens, slot.row = row.tokens[: row.cached], None

    def read(self, rows: Sequence[SequenceState]) -> Scores:
        """Read what the target has read since the last draft, and score with the last place of each row.

        Rows have two tokens or more.
        """
        return self._layer.read(rows, self.take_unread(rows), [len(row.tokens) - 1 for row in rows])

    def take_unread(self, rows: Sequence[SequenceState]) -> list[int]:
        """The first place that each row has to read, at most a window below its last; from now on they count as
        read."""
        begins = []
        for row in rows:
            slot, end = self._slots[row.slot], len(row.tokens) - 1
            begins.append(begin := slot.begins(end, self._layer.window))
            slot.first, slot.read = (begin if begin > slot.read else min(slot.first, begin)), end
        return begins
