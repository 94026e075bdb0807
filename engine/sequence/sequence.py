"""Running sequences: the state of each, and first come, first served admission to slots and cache blocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from specchat.engine.cache.block_pool import BlockStore
from specchat.engine.cache.prefix_tree import common_prefix
from specchat.engine.commands import Submit
from specchat.engine.events import Outbox
from specchat.engine.request import DEFAULT_GAMMA, MAX_GAMMA, NO_DRAFTER, Request
from specchat.engine.sequence.detokenizer import Detokenizer
from specchat.engine.sequence.row_constraint import RowConstraint
from specchat.engine.settings import Sampling


@dataclass(slots=True)
class SequenceState:
    """Host-side state of one running request: a row of the batch, in one slot of the KV cache."""

    request: Request
    outbox: Outbox
    slot: int
    tokens: list[int]
    """Token ids of prompt and reply."""
    prompt_length: int
    cached: int
    """Leading tokens whose keys and values are in the slot; when decoding, all but the last."""
    seed: int
    text: Detokenizer
    drafter: str
    """The request's drafter; none after it has failed."""
    admitted_at: float = 0.0
    rounds: int = 0
    continued: int = 0
    """Number of trailing prompt tokens that are the beginning of the reply."""
    left: int = 0
    """Tokens that it may yet emit, when the round being planned begins."""
    room: int = 0
    """Largest useful draft length of the round being planned."""
    repetition: Repetition | None = None
    """Watches the reply, if it ends when it repeats itself."""
    steady: bool = False
    """Whether γ must not depend on measured times: a seed must repeat, and drafts matter, since the width of a pass
    decides last bits or the reply is lenient."""
    constraint: RowConstraint | None = None
    """What its reply has to follow, if it has to follow anything."""
    waits: bool = False
    """Whether it has given up its cache blocks and waits for others; then its text is read again."""

    greedy: bool = field(init=False)
    """Whether its tokens are the likeliest ones."""
    draws: bool = field(init=False)
    """Whether its drafts are drawn from distributions q. With a seed they are not: the tokens of a reply are then drawn
    by position, and drafted tokens are accepted where they are the drawn ones: the reply does not depend on drafts."""
    drafting: Sampling = field(init=False)
    """How drafters choose tokens."""
    adjusts: bool = field(init=False)
    """Whether bias or penalties change the target's logits."""
    failed: BaseException | None = None
    """Why it ends: what was raised as its tokens were committed or their record was made."""

    def __post_init__(self) -> None:
        sampling = self.request.sampling
        self.greedy, self.adjusts = sampling.greedy, sampling.adjusts
        self.draws = not sampling.greedy and sampling.seed is None
        self.drafting = sampling if self.draws else replace(sampling, temperature=0.0)

    @property
    def sampling(self) -> str:
        """The kind of sampling, which acceptance depends on."""
        return "greedy" if self.greedy else "sampled" if self.draws else "seeded"

    @property
    def reply_begin(self) -> int:
        """Place of the first token of the reply, which may be a given one."""
        return self.prompt_length - self.continued

    @property
    def emitted(self) -> int:
        """Number of reply tokens so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def prefilled(self) -> bool:
        """Whether the target has processed all tokens except the last, which a round feeds."""
        return self.cached == len(self.tokens) - 1

    @property
    def adaptive(self) -> bool:
        """Whether γ is chosen in each round."""
        return self.request.gamma is None and self.drafter != NO_DRAFTER and not self.steady

    def measure_room(self, context: int) -> None:
        """Set `left` and `room`, the requested γ limited by that, for a context of `context` tokens."""
        self.left = min(context - len(self.tokens), self.request.max_tokens - self.emitted)
        free = MAX_GAMMA if self.adaptive else DEFAULT_GAMMA
        requested = free if self.request.gamma is None else self.request.gamma
        self.room = 0 if self.drafter == NO_DRAFTER else max(0, min(requested, self.left - 1))


LONGEST_PERIOD = 200
"""Most tokens of what is repeated."""
TIMES = 4
"""How often it must be there."""
LEAST = 64
"""Tokens of all its occurrences together: columns of a table, zeros and laughter are not repetitions."""


class Repetition:
    """Watches a growing reply for a period of up to `LONGEST_PERIOD` tokens that is there `TIMES` times in a row and
    for at least `LEAST` tokens.

    For each period it counts how many of the last tokens equal those one period before: one comparison of
    `LONGEST_PERIOD` tokens per new token, whatever the length of the reply.
    """

    def __init__(self) -> None:
        periods = np.arange(1, LONGEST_PERIOD + 1)
        self._needed = np.maximum(TIMES * periods, LEAST) - periods
        """Value of `_equal` at which a period is a repetition, by period."""
        self._recent: NDArray[np.int64] = np.full(LONGEST_PERIOD, -1)
        """The last tokens, the newest first; -1 before the reply."""
        self._equal = np.zeros(LONGEST_PERIOD, dtype=np.int64)
        """Number of last tokens that equal the tokens one period before, by period."""

    def add(self, token: int) -> bool:
        """Add a token; whether the reply repeats itself now."""
        self._equal = np.where(self._recent == token, self._equal + 1, 0)
        self._recent = np.concatenate([[token], self._recent[:-1]])
        return bool((self._equal >= self._needed).any())


_PASS_SHARE = 4
"""Rows wait for prefixes that others are prefilling if that saves at least a chunk divided by this."""
_AHEAD = MAX_GAMMA + 1
"""Columns that a round may write after a row's last token."""
_PADDING = 4
"""Maximum size of the padded outputs of a ragged pass, in chunks."""


class Scheduler:
    """Queue of waiting requests, slots of running ones, and the cache blocks of their texts.

    Args:
        cache: the target's; its pool has the blocks of all caches, and is managed.
        prefixes: whether cached prefixes can be reused (`Capabilities.prefixes`).
    """

    def __init__(self, cache: BlockStore, *, prefixes: bool = True) -> None:
        self.pool, self._cache, self._prefixes = cache.pool, cache, prefixes
        self.waiting: deque[Submit] = deque()
        self.rows: Sequence[SequenceState] = ()
        """Running sequences, by slot."""
        self._matched = [0] * self.pool.slots
        """Length of the known prefix that each slot began with."""
        self._stored = [0] * self.pool.slots
        """Leading columns of each slot that the target's cache has in its blocks; a drafter may need the target to read
        some of them again."""
        self._reserved: set[int] = set()
        """Slots in use for other work than requests."""

    @property
    def suspended(self) -> list[SequenceState]:
        """Running sequences that wait for cache blocks, the oldest first."""
        return sorted((row for row in self.rows if row.waits), key=lambda row: row.admitted_at)

    def _free_slots(self) -> list[int]:
        used = {row.slot for row in self.rows} | self._reserved
        return [slot for slot in range(self.pool.slots) if slot not in used]

    @property
    def free_slot(self) -> int | None:
        """A slot that nothing uses."""
        return next(iter(self._free_slots()), None)

    def reserve(self) -> int | None:
        """A slot with blocks for all of its columns for other work, until `release`; None if all are in use."""
        for slot in self._free_slots()[:1]:
            if self.pool.reserve(slot, self.pool.columns):
                self._reserved.add(slot)
                return slot
            self.pool.clear(slot)
        return None

    def release(self, slot: int) -> None:
        """Make a reserved slot available to sequences."""
        self._reserved.discard(slot)
        self.pool.clear(slot)

    def place(self, prompt: Sequence[int]) -> tuple[int, int] | None:
        """A free slot with the blocks for a prompt, and how many of its tokens these hold; None while there are none.

        The last token of a prompt is fed by a round and never counts as cached.
        """
        slot = self._free_slots()[0]
        length = self._take_prefix(slot, prompt)
        return None if length is None else (slot, length)

    def _take_prefix(self, slot: int, tokens: Sequence[int]) -> int | None:
        if not self.pool.has_room(len(tokens) + _AHEAD):
            return None
        length = self.pool.admit(slot, tokens[:-1], self.usable) if self._prefixes else 0
        if self.pool.reserve(slot, len(tokens) + _AHEAD):
            self._matched[slot] = self._stored[slot] = length
            return length
        self.pool.clear(slot)
        return None

    def usable(self, length: int) -> int:
        """How much of a known prefix may be reused."""
        return length

    def admit(self, row: SequenceState) -> None:
        """Assign a sequence to its slot."""
        self.rows = sorted((*self.rows, row), key=lambda each: each.slot)

    def attach(self, row: SequenceState) -> None:
        """Let a row continue from the part of the prefix in its blocks that the target's cache knows."""
        row.cached = self._stored[row.slot] = self._cache.attach(row.slot, row.cached)

    def longer_prefix(self, row: SequenceState) -> bool:
        """Whether more of a row's prompt is known by now than the row has read."""
        return self._prefixes and self.pool.known(row.tokens[: row.prompt_length - 1], self.usable) > max(
            row.cached, self._matched[row.slot], self._stored[row.slot]
        )

    def suspend(self, row: SequenceState) -> None:
        """Take a row's blocks; it waits until `resume` finds others."""
        self.commit(row, ends=True)
        self.pool.clear(row.slot)
        row.waits, row.cached = True, 0

    def resume(self, row: SequenceState) -> bool:
        """Give a suspended row the blocks that its text needs, first the blocks of its longest known prefix.

        Returns:
            Whether there are enough.
        """
        length = self._take_prefix(row.slot, row.tokens)
        row.waits, row.cached = length is None, length or 0
        return not row.waits

    def extend(self, row: SequenceState, rounds: int = 1) -> bool:
        """Let a row have the blocks that its next rounds may write; whether there are enough."""
        return self.pool.reserve(row.slot, len(row.tokens) + rounds * _AHEAD)

    def trim(self) -> None:
        """Free the blocks that a round reserved for tokens that were rejected."""
        for row in self.rows:
            self.pool.trim(row.slot, len(row.tokens))

    def commit(self, row: SequenceState, *, ends: bool = False) -> None:
        """Let other texts that begin like a row's use what it has read.

        Args:
            ends: whether the row's last block is part of that, as nothing more is read for now.
        """
        if self._prefixes:
            stored = self._stored[row.slot]
            if row.cached > stored:
                self._cache.mark(row.slot, stored, row.cached)
                self._stored[row.slot] = row.cached
            self.pool.commit(
                row.slot, row.tokens[: self.shared(row)], final=ends or row.prefilled, by=row.request.request_id
            )

    def shared(self, row: SequenceState) -> int:
        """Tokens of a row that other texts may use."""
        return row.cached

    def retire(self, row: SequenceState, *, keep: bool = True) -> None:
        """Remove a sequence from its slot; its text stays known if `keep`."""
        if keep and not row.waits:
            self.commit(row, ends=True)
        self.pool.clear(row.slot)
        self.rows = [each for each in self.rows if each is not row]

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
            reuse: called before a row is added, to give it a longer prefix.
            ragged: whether passes need no padding.
        """
        reuse(rows[0])
        batch, later, saved = [rows[0]], [], 0

        def add(row: SequenceState) -> None:
            reuse(row)
            reading = [each for each in (*batch, row) if _left(each)]
            lefts = [_left(each) if each is not rows[0] else min(chunk, _left(each)) for each in reading]
            width = max(lefts, default=0)
            padded = width * len(lefts)
            fits = sum(lefts) <= chunk and padded <= _PADDING * chunk if ragged else padded <= chunk
            if not _left(row) or (fits and max(each.cached for each in reading) + width <= room):
                batch.append(row)

        for row in rows[1:]:
            shared = max(_shared_unread(other, row) for other in batch) if self._prefixes else 0
            if shared:
                later.append(row)
                saved += shared
            else:
                add(row)
        if _PASS_SHARE * saved < chunk:
            for row in later:
                add(row)
        return [row for row in batch if not row.waits]  # `reuse` may have found no blocks


def _left(row: SequenceState) -> int:
    """Number of prompt tokens still to prefill: all but the last, which a round feeds."""
    return len(row.tokens) - 1 - row.cached


def _shared_unread(other: SequenceState, row: SequenceState) -> int:
    """Number of prompt tokens that two rows share and that neither has prefilled."""
    read, end = max(row.cached, other.cached), min(len(row.tokens), len(other.tokens)) - 1
    if read >= end or other.tokens[read] != row.tokens[read]:  # the common case, without a comparison
        return 0
    return max(0, min(common_prefix(other.tokens, row.tokens), end) - read)
