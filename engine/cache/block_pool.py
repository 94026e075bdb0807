"""The blocks of all caches of an engine: which slot uses which, and which hold texts for later prompts.

A slot's text is a table of blocks (Kwon et al. 2023, "PagedAttention"). Blocks are counted by their users: slots, and
the prefix tree, from which prompts take the longest beginning that was ever read. The caches of target, draft models
and heads use the same tables, each with its own memory per block (`BlockStore`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specchat.engine.cache.prefix_tree import BLOCK, Node, PrefixTree
from specchat.engine.errors import EngineError

_MOST_BLOCKS = 1 << 16
"""Largest number of blocks of a pool: enough for 2 million tokens."""
_EVICTED = 16
"""Blocks are evicted in parts of a pool of this number, since leaves are searched for."""
_STATES = 64
"""Largest number of states of recurrent layers that are kept for later prompts."""


class BlockPool:
    """Tables of blocks for every slot.

    Until `manage` is called every slot has its own blocks, one after the other, enough for all of its columns.

    Args:
        slots: texts that are read or written at the same time.
        columns: of a slot.
    """

    def __init__(self, slots: int, columns: int) -> None:
        self.slots, self.width = slots, -(-columns // BLOCK)
        self.blocks = slots * self.width
        self.tables = np.arange(self.blocks, dtype=np.int32).reshape(slots, self.width)
        """Blocks of every slot [slots, width]; 0 for none. Block 0 never holds a text."""
        self.stores: list[BlockStore] = []
        self.states: StateStore | None = None
        """States of the target's recurrent layers."""
        self.all_states: list[StateStore] = []
        """States of the recurrent layers of all models; a draft model may know less of a text."""
        self._users = [1] * self.blocks
        self._free: list[int] = []
        self._held: list[list[int]] = [[] for _ in range(slots)]
        self._tree = PrefixTree()
        self._with_states: deque[tuple[Node, tuple[StateStore, int]]] = deque()

    def manage(self, memory: int) -> None:
        """Give slots only the blocks that their texts need, of as many blocks as fit into `memory` bytes.

        Raises:
            EngineError: there is not enough memory for one text of all columns.
        """
        size = BLOCK * sum(store.column_bytes for store in self.stores)
        least = self.width + 1
        blocks = max(least, min(memory // max(size, 1), _MOST_BLOCKS))
        while not self._allocated(blocks):
            if blocks == least:
                raise EngineError(f"a cache for one text needs {least * size / 1e9:.1f} GB: lower --context")
            blocks = max(blocks // 2, least)
        self.blocks, self.tables[:] = blocks, 0
        self._users, self._free = [0] * blocks, list(range(blocks - 1, 0, -1))

    def _allocated(self, blocks: int) -> bool:
        try:
            for store in self.stores:
                store.allocate(blocks)
                store.valid = np.zeros(blocks, np.int16)
        except (MemoryError, torch.OutOfMemoryError):
            return False
        return True

    @property
    def bytes(self) -> int:
        """Memory of all blocks."""
        return self.blocks * BLOCK * sum(store.column_bytes for store in self.stores)

    @property
    def free(self) -> int:
        """Number of blocks that hold nothing."""
        return len(self._free)

    @property
    def columns(self) -> int:
        """Most columns of a slot."""
        return self.width * BLOCK

    def is_shared(self, block: int) -> bool:
        """Whether a block has several users."""
        return self._users[block] > 1

    def held(self, slot: int) -> Sequence[int]:
        """Blocks of a slot, in the order of its columns."""
        return self._held[slot]

    def admit(self, slot: int, tokens: Sequence[int], usable: Callable[[int], int] = int) -> int:
        """Give an empty slot the blocks of the longest known beginning of a text; returns its length.

        Blocks that the text shares to their end are used by both; of the one in which it differs, the common part is
        copied.

        Args:
            usable: how much of a length may be used.
        """
        found, length = self._match(tokens, usable)
        for states in self.all_states:
            states.give(slot, {n: state for n, state in _known(found, states).items() if n <= length})
        whole, rest = divmod(length, BLOCK)
        blocks = [node.block for node, _ in found[: whole + (rest > 0)]]
        for block in blocks:
            self._users[block] += 1
        if rest:  # the last one is copied before it is written to
            source = blocks.pop()
            copied = self._take()
            self._drop(source)
            if copied is None:
                length = 0 if self.states else length - rest
            else:
                blocks.append(copied)
                for store in self.stores:
                    store.copy(source, copied, rest)
                    store.valid[copied] = min(rest, store.valid[source])
        self._held[slot] = blocks
        self.tables[slot, : len(blocks)] = blocks
        return length

    def has_room(self, columns: int) -> bool:
        """Whether a text of `columns` columns fits, if all texts that no slot uses are evicted."""
        in_use = {block for held in self._held for block in held}
        return min(-(-columns // BLOCK), self.width) <= self.blocks - 1 - len(in_use)

    def reserve(self, slot: int, columns: int) -> bool:
        """Give a slot blocks for its first `columns` columns; whether it has them now. Unused texts are evicted."""
        held = self._held[slot]
        while len(held) < min(-(-columns // BLOCK), self.width):
            block = self._take()
            if block is None:
                return False
            self.tables[slot, len(held)] = block
            held.append(block)
        return True

    def trim(self, slot: int, columns: int) -> None:
        """Free the blocks of a slot beyond its first `columns` columns."""
        held = self._held[slot]
        while len(held) > -(-columns // BLOCK):
            self._drop(held.pop())
            self.tables[slot, len(held)] = 0

    def clear(self, slot: int) -> None:
        """Free all blocks of a slot."""
        for block in self._held[slot]:
            self._drop(block)
        self._held[slot] = []
        self.tables[slot] = 0

    def commit(self, slot: int, tokens: Sequence[int], *, final: bool, by: str = "") -> None:
        """Let later prompts use the blocks of a slot that hold these tokens; if `final`, also a partly filled one.

        Args:
            by: name of the request that filled the blocks.
        """
        if not final:
            tokens = tokens[: len(tokens) - len(tokens) % BLOCK]
        nodes, held = [], self._held[slot]
        for number, (node, before) in enumerate(self._tree.insert(tokens, held)):
            own = held[number]
            # Otherwise the node has tokens of another text, which this block does not hold.
            whole = len(node.tokens) <= len(tokens) - number * BLOCK
            if before is None or (before != own and whole and (node.block == own or self._is_better(own, before))):
                node.block, node.filled_by = own, node.filled_by or by
                self._users[own] += 1
                if before is not None:
                    self._drop(before)
            nodes.append(node)
        for states in self.all_states if final else ():
            for length, state in states.take(slot, len(tokens)).items():
                node = nodes[-(-length // BLOCK) - 1]
                if (states, length) not in node.states:
                    self._with_states.append((node, (states, length)))
                node.states[states, length] = state
        while len(self._with_states) > _STATES:
            node, key = self._with_states.popleft()
            node.states.pop(key, None)

    def known(self, tokens: Sequence[int], usable: Callable[[int], int] = int) -> int:
        """Length of the longest known beginning of a text."""
        return self._match(tokens, usable)[1]

    def _match(self, tokens: Sequence[int], usable: Callable[[int], int]) -> tuple[list[tuple[Node, int]], int]:
        """Nodes of the longest known beginning, and its length, at which the target's states are known."""
        found = self._tree.find(tokens)
        length = usable(sum(shared for _, shared in found))
        if self.states:
            known = _known(found, self.states)
            while length and length not in known:
                length = usable(max((n for n in known if n < length), default=0))
        return found, length

    def filled_by(self) -> tuple[Counter[str], Counter[str]]:
        """Number of known blocks by the request that filled them, the latest last; number of them in several texts."""
        texts = sorted(self._tree.texts().items(), key=lambda item: item[0].used)
        shared = (node.filled_by for node, count in texts if count > 1)
        return Counter(node.filled_by for node, _ in texts), Counter(shared)

    def latest_texts(self, groups: Mapping[str, str]) -> dict[str, list[int]]:
        """The text of each group that was used last, the latest first.

        Args:
            groups: of requests that filled blocks.
        """
        latest: dict[str, Node] = {}
        for node in sorted(self._tree.nodes, key=lambda node: node.used, reverse=True):
            if node.filled_by in groups and node.ends:
                latest.setdefault(groups[node.filled_by], node)
        return {group: node.text() for group, node in latest.items()}

    def unshared(self, slot: int) -> int:
        """Blocks of a slot that are in no known text."""
        return sum(self._users[block] == 1 for block in self._held[slot])

    def _is_better(self, block: int, other: int) -> bool:
        """Whether more caches know a block than another one with the same tokens."""
        return sum(int(store.valid[block]) - int(store.valid[other]) for store in self.stores) > 0

    def _take(self) -> int | None:
        if not self._free:
            self._evict(max(self.blocks // _EVICTED, 1))
        if not self._free:
            return None
        block = self._free.pop()
        self._users[block] = 1
        for store in self.stores:
            store.valid[block] = 0
        return block

    def _evict(self, count: int) -> None:
        for node in list(self._tree.evict(lambda node: self._users[node.block] == 1, count)):
            self._drop(node.block)

    def _drop(self, block: int) -> None:
        self._users[block] -= 1
        if not self._users[block]:
            self._free.append(block)


def _known(found: Sequence[tuple[Node, int]], states: StateStore) -> dict[int, Any]:
    """Stored states along a text, by length."""
    return {n: state for node, _ in found for (owner, n), state in node.states.items() if owner is states}


def as_array(tensor: Tensor) -> Any:
    """The memory of a tensor on a CPU as an array of numpy, which gets bfloat16 as int16; else the tensor itself.

    Indexing of numpy takes a fraction of the time of torch's, which shares even a copy out among threads, and waits for
    one that another program keeps busy.
    """
    if tensor.device.type != "cpu":
        return tensor
    return (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy()


class BlockStore:
    """Memory of one cache, by block, and how many columns of each block it knows.

    Args:
        pool: of the blocks.
    """

    column_bytes: int
    """Memory of one column."""
    memory: Sequence[Tensor] = ()
    """Its tensors, each [blocks, BLOCK, …]."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.valid = np.zeros(pool.blocks, np.int16)
        pool.stores.append(self)

    def allocate(self, blocks: int) -> None:
        """Allocate memory for `blocks` blocks; what was stored is lost."""
        raise NotImplementedError

    def copy(self, source: int, target: int, count: int) -> None:
        """Copy the first `count` columns of a block."""
        for each in map(as_array, self.memory):
            each[target, :count] = each[source, :count]

    def load(self, slot: int, length: int) -> None:
        """Bring the first columns of a slot's blocks to where passes read them, if that is elsewhere."""

    def save(self, slot: int, start: int, end: int) -> None:
        """Bring columns of a slot from where passes write them to its blocks, if that is elsewhere."""

    def parts(self, slot: int, start: int, end: int) -> Iterator[tuple[int, int, range]]:
        """First column, block, and columns within the block, for each block of a slot's columns."""
        for first in range(start - start % BLOCK, end, BLOCK):
            columns = range(max(start - first, 0), min(end - first, BLOCK))
            yield first + columns.start, int(self.pool.tables[slot, first // BLOCK]), columns

    def attach(self, slot: int, length: int, start: int = 0) -> int:
        """Make a slot's first columns readable; returns how many of the first `length` columns this cache has.

        Args:
            slot: its blocks are in its table.
            length: of the text.
            start: columns that do not matter, a multiple of `BLOCK`.
        """
        valid = self.valid[self.pool.tables[slot, start // BLOCK : -(-length // BLOCK)]]
        partial = np.flatnonzero(valid < BLOCK)
        if len(partial):
            length = min(length, start + int(partial[0]) * BLOCK + int(valid[partial[0]]))
        self.load(slot, length)
        return length

    def mark(self, slot: int, start: int, end: int) -> None:
        """The cache knows a slot's columns up to `end`, and none after it; those from `start` on are new."""
        self.save(slot, start, end)
        table, (last, rest) = self.pool.tables[slot], divmod(end, BLOCK)
        self.valid[table[start // BLOCK : last]] = BLOCK
        for block in self.pool.held(slot)[last:]:
            # What others share is known from them.
            self.valid[block] = max(self.valid[block], rest) if self.pool.is_shared(block) else rest
            rest = 0


_SNAPSHOTS = 4
"""Snapshots per slot, the latest ones."""


class StateStore(ABC):
    """States of layers other than attention, per slot and length of its text.

    Args:
        slots: sequences that fit at once.
    """

    bytes: int
    """Memory of one slot, without snapshots."""

    def __init__(self, slots: int) -> None:
        self._snapshots: list[dict[int, Any]] = [{} for _ in range(slots)]
        """States at the ends of prompts and replies, by length, for each slot."""
        self._reading: list[int | None] = [None] * slots
        """End of the latest chunk of a prompt that is being read, for each slot."""

    @abstractmethod
    def at(self, slot: int, length: int) -> Any:
        """The state after `length` tokens; None if it is not known."""

    @abstractmethod
    def _latest(self, slot: int, length: int) -> int:
        """Longest length up to `length` at which the latest passes have left a state; 0 for none."""

    def reusable(self, slot: int, length: int) -> int:
        """Longest length up to `length` from which a slot's text can continue."""
        return max((self._latest(slot, length), *(n for n in self._snapshots[slot] if n <= length)))

    def take(self, slot: int, length: int) -> dict[int, Any]:
        """Snapshots of a slot up to `length`, and the latest state up to there, by length; none is written to later."""
        states = {n: state for n, state in self._snapshots[slot].items() if n <= length}
        last = self.reusable(slot, length)
        return states if last in states or not last else states | {last: self.at(slot, last)}

    def give(self, slot: int, states: Mapping[int, Any]) -> None:
        """Let a slot know these states and nothing else."""
        self._snapshots[slot] = dict(sorted(states.items())[-_SNAPSHOTS:])
        self._reading[slot] = None

    def _keep(self, slot: int, lengths: Iterable[int]) -> None:
        """Add the known ones of these states to the snapshots."""
        kept = {n: state for n in lengths if (state := self.at(slot, n)) is not None}
        self._snapshots[slot] = dict([*(self._snapshots[slot] | kept).items()][-_SNAPSHOTS:])

    def _drop_snapshots(self, slot: int, start: int) -> None:
        """Drop the snapshots after `start`, where a pass begins to overwrite the slot."""
        self._snapshots[slot] = {n: state for n, state in self._snapshots[slot].items() if n <= start}
