"""Scheduler: first come, first served admission of requests to slots, with reuse of cached prefixes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from specchat.engine.sequence.sequence import SequenceState

Waiting = TypeVar("Waiting")
_WORTH_A_PASS = 4
"""Rows wait to be lent what others read where that spares a chunk divided by this, which another pass is worth."""
_PADDING = 4
"""Chunks that what a ragged pass of one chunk says of its tokens may take in memory, where it is padded."""


@dataclass(slots=True)
class Slot:
    """One slot of the KV cache."""

    tokens: list[int] = field(default_factory=list)
    """Tokens whose keys and values it holds while no sequence occupies it."""
    row: SequenceState | None = None
    used: int = 0
    """Order of last use; larger is more recent."""
    borrowed: bool = False
    """Whether work beside the requests has it."""

    @property
    def free(self) -> bool:
        """Whether a sequence may have it."""
        return self.row is None and not self.borrowed

    @property
    def content(self) -> list[int]:
        """Tokens whose keys and values are valid."""
        return self.tokens if self.row is None else self.row.shareable


@dataclass(frozen=True, slots=True)
class Placement:
    """Slot for a prompt, and the prefix of it that the cache holds already."""

    slot: int
    source: int
    """Slot that holds the prefix; equal to `slot` if nothing has to be copied."""
    length: int
    """Tokens of the prompt that need no prefill."""


class Scheduler(Generic[Waiting]):
    """Queue of waiting requests and assignment of slots, chosen so that cached prefixes are reused."""

    def __init__(self, slots: int) -> None:
        self.waiting: deque[Waiting] = deque()
        self._slots = [Slot() for _ in range(slots)]
        self._clock = 0

    @property
    def rows(self) -> list[SequenceState]:
        """Running sequences, by slot."""
        return [slot.row for slot in self._slots if slot.row is not None]

    @property
    def has_room(self) -> bool:
        """Whether a slot is free."""
        return any(slot.free for slot in self._slots)

    def borrow(self) -> int | None:
        """Take the free slot that is worth least out of use until `give_back`; None where none is free."""
        if not self.has_room:
            return None
        slot = self._least_useful()
        self._slots[slot].tokens, self._slots[slot].borrowed = [], True
        return slot

    def give_back(self, slot: int) -> None:
        """Let sequences have a slot again; what it holds is of no use to them."""
        self._slots[slot].borrowed = False

    def place(self, prompt: list[int]) -> Placement:
        """Choose a free slot for a prompt, and the slot with the longest cached prefix of it.

        The last token of a prompt is always fed by a round, so it never counts as cached. A slot that holds more than
        twice the shared prefix belongs to another conversation: the prefix is copied, the slot not overwritten.
        """
        shared = [common_prefix(slot.content, prompt[:-1]) for slot in self._slots]
        source = max(range(len(self._slots)), key=shared.__getitem__)
        length = shared[source]
        holder = self._slots[source]
        if holder.free and 2 * length >= len(holder.tokens):
            return Placement(source, source, length)
        return Placement(self._least_useful(), source, length)

    def _least_useful(self) -> int:
        """Of the free slots an empty one, else the one that was used least recently."""
        free = [i for i, slot in enumerate(self._slots) if slot.free]
        return min(free, key=lambda i: (bool(self._slots[i].tokens), self._slots[i].used))

    def lend(self, row: SequenceState) -> Placement | None:
        """Slot that holds more of a sequence's prompt than its own, or None: prompts are prefilled once."""
        shared = [common_prefix(slot.content, row.tokens[: row.prompt_length - 1]) for slot in self._slots]
        source = max(range(len(self._slots)), key=shared.__getitem__)
        return Placement(row.slot, source, shared[source]) if shared[source] > row.cached else None

    def read_together(
        self,
        rows: Sequence[SequenceState],
        chunk: int,
        room: int,
        borrow: Callable[[SequenceState], None],
        *,
        ragged: bool,
    ) -> list[SequenceState]:
        """Rows whose prompts one pass of `chunk` tokens is to read: the first, and all that is left of others.

        Rows whose prompts begin as one of these does wait, as what it reads will be lent to them (`lend`), unless that
        spares so little that another pass would cost more.

        Args:
            rows: with something left to read, the one that came first at the head.
            chunk: tokens of a pass, padding included.
            room: tokens that a slot holds.
            borrow: called with a row that is about to be read, to take what other slots have of its prompt.
            ragged: whether a pass costs what its tokens do, without padding.
        """
        borrow(rows[0])
        together, later, spared = [rows[0]], [], 0

        def add(row: SequenceState) -> None:
            borrow(row)
            reading = [each for each in (*together, row) if _left(each)]
            lefts = [_left(each) if each is not rows[0] else min(chunk, _left(each)) for each in reading]
            width = max(lefts, default=0)
            padded = width * len(lefts)
            fits = sum(lefts) <= chunk and padded <= _PADDING * chunk if ragged else padded <= chunk
            if not _left(row) or (fits and max(each.cached for each in reading) + width <= room):
                together.append(row)

        for row in rows[1:]:
            ahead = max(_to_be_lent(other, row) for other in together)
            if ahead:
                later.append(row)
                spared += ahead
            else:
                add(row)
        if _WORTH_A_PASS * spared < chunk:
            for row in later:
                add(row)
        return together

    def admit(self, row: SequenceState) -> None:
        """Put a sequence into its slot."""
        self._slots[row.slot].row = row

    def retire(self, row: SequenceState, *, keep: bool = True) -> None:
        """Remove a sequence from its slot; the cached tokens stay reusable unless `keep` is False (cache not valid)."""
        self._clock += 1
        slot = self._slots[row.slot]
        slot.tokens = row.shareable if keep else []
        slot.row = None
        slot.used = self._clock


def _left(row: SequenceState) -> int:
    """Tokens of a prompt still to be read: all but the last, which a round feeds."""
    return len(row.tokens) - 1 - row.cached


def _to_be_lent(lender: SequenceState, row: SequenceState) -> int:
    """Tokens of a row's prompt that another is still to read as well, so that it could be lent them afterwards."""
    read, end = max(row.cached, lender.cached), min(len(row.tokens), len(lender.tokens)) - 1
    if row.source or read >= end or lender.tokens[read] != row.tokens[read]:  # most: nothing else has to be compared
        return 0
    return max(0, min(common_prefix(lender.tokens, row.tokens), end) - read)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Number of leading tokens that two token lists share."""
    length = min(len(a), len(b))
    if a[:length] == b[:length]:
        return length
    return next((i for i in range(length) if a[i] != b[i]), length)
