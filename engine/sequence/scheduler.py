"""Scheduler: first come, first served admission of requests to slots, with reuse of cached prefixes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from specchat.engine.sequence.sequence import SequenceState

Waiting = TypeVar("Waiting")
_PASS_SHARE = 4
"""Rows wait for prefixes that others are prefilling if that saves at least a chunk divided by this."""
_PADDING = 4
"""Maximum size of the padded outputs of a ragged pass, in chunks."""


@dataclass(slots=True)
class Slot:
    """One slot of the KV cache."""

    tokens: list[int] = field(default_factory=list)
    """Tokens of its cached keys and values while no sequence occupies it."""
    row: SequenceState | None = None
    used: int = 0
    """Time of last use; larger is more recent."""
    reserved: bool = False
    """Whether it is in use for other work than requests."""

    @property
    def free(self) -> bool:
        """Whether a sequence can occupy it."""
        return self.row is None and not self.reserved

    @property
    def content(self) -> list[int]:
        """Tokens whose keys and values are valid."""
        return self.tokens if self.row is None else self.row.tokens[: self.row.cached]


@dataclass(frozen=True, slots=True)
class Placement:
    """Slot for a prompt, and the cached prefix of it."""

    slot: int
    source: int
    """Slot that contains the prefix; equal to `slot` if nothing must be copied."""
    length: int
    """Length of the cached prefix."""


class Scheduler(Generic[Waiting]):
    """Queue of waiting requests, and assignment of slots with reuse of cached prefixes.

    Args:
        slots: of the cache.
        prefixes: whether cached prefixes can be reused (`Capabilities.prefixes`).
        reusable: how many of a slot's first tokens a prompt may continue from (`KVCache.reusable`).
    """

    def __init__(
        self, slots: int, *, prefixes: bool = True, reusable: Callable[[int, int], int] = lambda _, length: length
    ) -> None:
        self._prefixes, self._reusable = prefixes, reusable
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

    def reserve(self) -> int | None:
        """Reserve the least useful free slot for other work until `release`; None if none is free."""
        if not self.has_room:
            return None
        slot = self._least_useful()
        self._slots[slot].tokens, self._slots[slot].reserved = [], True
        return slot

    def release(self, slot: int) -> None:
        """Make a reserved slot available to sequences, with no reusable tokens."""
        self._slots[slot].reserved = False

    def place(self, prompt: list[int]) -> Placement:
        """Choose a free slot for a prompt, and the slot with the longest cached prefix of it.

        The last token of a prompt is fed by a round and never counts as cached. A slot with more than twice the shared
        prefix belongs to another conversation: the prefix is copied, and the slot is not overwritten.
        """
        shared = self._shared(prompt[:-1])
        source = max(range(len(self._slots)), key=shared.__getitem__)
        length = shared[source]
        holder = self._slots[source]
        if holder.free and 2 * length >= len(holder.tokens):
            return Placement(source, source, length)
        return Placement(self._least_useful(), source, length)

    def _shared(self, tokens: list[int]) -> list[int]:
        """Per slot, how many of these tokens can be reused from it."""
        if not self._prefixes:
            return [0] * len(self._slots)
        return [self.reusable(i, common_prefix(slot.content, tokens)) for i, slot in enumerate(self._slots)]

    def reusable(self, slot: int, length: int) -> int:
        """How many of a slot's first `length` tokens a prompt may continue from."""
        return self._reusable(slot, length)

    def _least_useful(self) -> int:
        """An empty free slot, else the least recently used one."""
        free = [i for i, slot in enumerate(self._slots) if slot.free]
        return min(free, key=lambda i: (bool(self._slots[i].tokens), self._slots[i].used))

    def longer_prefix(self, row: SequenceState) -> Placement | None:
        """A slot with a longer prefix of a running sequence's prompt than its own slot has, or None."""
        shared = self._shared(row.tokens[: row.prompt_length - 1])
        source = max(range(len(self._slots)), key=shared.__getitem__)
        return Placement(row.slot, source, shared[source]) if shared[source] > row.cached else None

    def prefill_batch(
        self,
        rows: Sequence[SequenceState],
        chunk: int,
        room: int,
        reuse: Callable[[SequenceState], None],
        *,
        ragged: bool,
    ) -> list[SequenceState]:
        """Rows to prefill in one pass of `chunk` tokens: the first row, and others whose remaining prompts fit.

        A row that shares a prefix with one of these waits to reuse it (`longer_prefix`), unless that saves less than
        another pass costs.

        Args:
            rows: with unread prompt tokens, oldest first.
            chunk: tokens of a pass, padding included.
            room: tokens per slot.
            reuse: called before a row is added, to copy a longer prefix from another slot.
            ragged: whether passes need no padding.
        """
        reuse(rows[0])
        together, later, saved = [rows[0]], [], 0

        def add(row: SequenceState) -> None:
            reuse(row)
            reading = [each for each in (*together, row) if _left(each)]
            lefts = [_left(each) if each is not rows[0] else min(chunk, _left(each)) for each in reading]
            width = max(lefts, default=0)
            padded = width * len(lefts)
            fits = sum(lefts) <= chunk and padded <= _PADDING * chunk if ragged else padded <= chunk
            if not _left(row) or (fits and max(each.cached for each in reading) + width <= room):
                together.append(row)

        for row in rows[1:]:
            shared = max(_shared_unread(other, row) for other in together) if self._prefixes else 0
            if shared:
                later.append(row)
                saved += shared
            else:
                add(row)
        if _PASS_SHARE * saved < chunk:
            for row in later:
                add(row)
        return together

    def admit(self, row: SequenceState) -> None:
        """Assign a sequence to its slot."""
        self._slots[row.slot].row = row

    def retire(self, row: SequenceState, *, keep: bool = True) -> None:
        """Remove a sequence from its slot; its cached tokens stay reusable if `keep`."""
        self._clock += 1
        slot = self._slots[row.slot]
        slot.tokens = row.tokens[: row.cached] if keep else []
        slot.row = None
        slot.used = self._clock


def _left(row: SequenceState) -> int:
    """Number of prompt tokens still to prefill: all but the last, which a round feeds."""
    return len(row.tokens) - 1 - row.cached


def _shared_unread(other: SequenceState, row: SequenceState) -> int:
    """Number of prompt tokens that two rows share and that neither has prefilled."""
    read, end = max(row.cached, other.cached), min(len(row.tokens), len(other.tokens)) - 1
    if read >= end or other.tokens[read] != row.tokens[read]:  # the common case, without a comparison
        return 0
    return max(0, min(common_prefix(other.tokens, row.tokens), end) - read)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Number of leading tokens that two token lists share."""
    length = min(len(a), len(b))
    if a[:length] == b[:length]:
        return length
    return next((i for i in range(length) if a[i] != b[i]), length)
