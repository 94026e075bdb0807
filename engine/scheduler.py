"""Who runs: requests wait in order of arrival, take a slot, and leave it with its cache intact for the next turn."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from engine.row import Row

Waiting = TypeVar("Waiting")


@dataclass(slots=True)
class Slot:
    """One row of the cache."""

    tokens: list[int] = field(default_factory=list)
    """What its keys and values stand for, while no row is in it."""
    row: Row | None = None
    used: int = 0
    """Larger is more recent."""

    @property
    def content(self) -> list[int]:
        """The tokens whose keys and values are valid."""
        return self.tokens if self.row is None else self.row.tokens[: self.row.cached]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a prompt goes, and what of it the cache holds already."""

    slot: int
    source: int
    """The slot that holds the prefix; the same as `slot` where nothing has to be copied."""
    length: int
    """Tokens of the prompt that need no prefill."""


class Scheduler(Generic[Waiting]):
    """First come, first served, bounded by the slots; hands out slots so that prefixes are used again."""

    def __init__(self, slots: int) -> None:
        self.waiting: deque[Waiting] = deque()
        self._slots = [Slot() for _ in range(slots)]
        self._clock = 0

    @property
    def rows(self) -> list[Row]:
        """The running rows, by slot."""
        return [slot.row for slot in self._slots if slot.row is not None]

    @property
    def has_room(self) -> bool:
        """Whether a slot is free."""
        return any(slot.row is None for slot in self._slots)

    def place(self, prompt: list[int]) -> Placement:
        """A free slot for a prompt, and the longest prefix of it that any slot holds.

        The last token of a prompt always goes through a round, so it is never counted as held. A slot that holds
        more than twice the shared prefix belongs to another conversation: its prefix is copied, not overwritten.
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

    def lend(self, row: Row) -> Placement | None:
        """The slot that holds more of a row's prompt than the row has read; requests of one prompt read it once."""
        shared = [common_prefix(slot.content, row.tokens[: row.prompt_length - 1]) for slot in self._slots]
        source = max(range(len(self._slots)), key=shared.__getitem__)
        return Placement(row.slot, source, shared[source]) if shared[source] > row.cached else None

    def admit(self, row: Row) -> None:
        """Put a row into its slot."""
        self._slots[row.slot].row = row

    def retire(self, row: Row, *, keep: bool = True) -> None:
        """Take a row out; its tokens stay known as the slot's content, unless the cache is not to be trusted."""
        self._clock += 1
        slot = self._slots[row.slot]
        slot.tokens = row.tokens[: row.cached] if keep else []
        slot.row = None
        slot.used = self._clock


def common_prefix(a: list[int], b: list[int]) -> int:
    """How many leading tokens two sequences share."""
    length = min(len(a), len(b))
    if a[:length] == b[:length]:
        return length
    return next(i for i in range(length) if a[i] != b[i])
