"""Scheduler: first come, first served admission of requests to slots, with reuse of cached prefixes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from specchat.engine.sequence.sequence import SequenceState

Waiting = TypeVar("Waiting")


@dataclass(slots=True)
class Slot:
    """One slot of the KV cache."""

    tokens: list[int] = field(default_factory=list)
    """Tokens whose keys and values it holds while no sequence occupies it."""
    row: SequenceState | None = None
    used: int = 0
    """Order of last use; larger is more recent."""

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
        return any(slot.row is None for slot in self._slots)

    def place(self, prompt: list[int]) -> Placement:
        """Choose a free slot for a prompt, and the slot with the longest cached prefix of it.

        The last token of a prompt is always fed by a round, so it never counts as cached. A slot that holds more than
        twice the shared prefix belongs to another conversation: the prefix is copied, the slot not overwritten.
        """
        shared = [common_prefix(slot.content, prompt[:-1]) for slot in self._slots]
        source = max(range(len(self._slots)), key=shared.__getitem__)
        length = shared[source]
        holder = self._slots[source]
        if holder.row is None and 2 * length >= len(holder.tokens):
            return Placement(source, source, length)
        free = [i for i, slot in enumerate(self._slots) if slot.row is None]
        slot = min(free, key=lambda i: (bool(self._slots[i].tokens), self._slots[i].used))
        return Placement(slot, source, length)

    def lend(self, row: SequenceState) -> Placement | None:
        """Slot that holds more of a sequence's prompt than its own, or None: prompts are prefilled once."""
        shared = [common_prefix(slot.content, row.tokens[: row.prompt_length - 1]) for slot in self._slots]
        source = max(range(len(self._slots)), key=shared.__getitem__)
        return Placement(row.slot, source, shared[source]) if shared[source] > row.cached else None

    def read_together(self, rows: Sequence[SequenceState], chunk: int, room: int) -> list[SequenceState]:
        """Rows whose prompts one pass of `chunk` tokens, padding included, is to read: the first, and whole others.

        What shares more with one of them than it has read waits, as that will be lent to it (`lend`).

        Args:
            rows: with something left to read, the one that came first at the head.
            chunk: tokens of a pass.
            room: tokens that a slot holds.
        """
        together = [rows[0]]
        width = min(chunk, _left(rows[0]))
        for row in rows[1:]:
            wide = max(width, _left(row))
            fits = wide * (len(together) + 1) <= chunk and max(r.cached for r in (*together, row)) + wide <= room
            if fits and all(common_prefix(row.tokens, other.tokens) <= row.cached for other in together):
                together.append(row)
                width = wide
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


def common_prefix(a: list[int], b: list[int]) -> int:
    """Number of leading tokens that two token lists share."""
    length = min(len(a), len(b))
    if a[:length] == b[:length]:
        return length
    return next(i for i in range(length) if a[i] != b[i])
