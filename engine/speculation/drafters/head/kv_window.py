"""What a draft head knows of every slot: states of what the target has read, keys and values of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from specchat.engine.runner.kv_cache import exchange
from specchat.engine.runner.padding import padded_width
from specchat.engine.runner.to_device import to_device
from specchat.engine.runner.tree import Tree
from specchat.engine.runner.tree_mask import TreeMask, tree_visibility
from specchat.engine.sequence.scheduler import common_prefix
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.speculation.drafters.head.network import DraftHead

Embed = Callable[[Tensor], Tensor]
"""Gives the target's embeddings [..., d] of tokens [...]."""
_TOGETHER = 17
"""Places that rows read in one pass; who is further behind reads alone first."""


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


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of its slot that each row looks at: as many for all, each from its own first."""

    slots: Tensor
    """[B], int64."""
    index: Tensor
    """[B, S], int64; beyond the last column nothing may be looked at."""
    together: slice | None = None
    """The slots, where they are neighbours."""
    low: int | None = None
    """The first column, where it is the same for all."""

    @classmethod
    def of(cls, rows: Sequence[SequenceState], lows: Sequence[int], ends: Sequence[int], slots: Tensor) -> _Columns:
        """From `lows[i]` on, so many that the longest of the stretches up to `ends[i]` is in them."""
        length = max(end - low for low, end in zip(lows, ends, strict=True))
        index = to_device(lows, slots.device)[:, None] + torch.arange(length, device=slots.device)
        first = rows[0].slot
        together = all(row.slot == first + i for i, row in enumerate(rows))
        return cls(
            slots,
            index,
            slice(first, first + len(rows)) if together else None,
            lows[0] if len(set(lows)) == 1 else None,
        )

    def look(self, stored: Tensor) -> Tensor:
        """These columns [B, heads, S, size] of what is stored [slots, heads, columns, size], in place where they are
        the same for rows in neighbouring slots."""
        if self.low is None:
            index = self.index.clamp(max=stored.shape[2] - 1)
            return stored[self.slots[:, None], :, index].transpose(1, 2)
        high = self.low + self.index.shape[1]
        return stored[self.slots if self.together is None else self.together, :, self.low : high]


class HeadMemory:
    """States, keys and values [slots, columns] of a head.

    Place i stands for token i + 1 with the state that the target had at token i. The head has one layer, so a place's
    key and value depend on nothing but these two: places may be read in any order, and again.

    Args:
        head: the network.
        slots: as many as the target's cache has.
        columns: as many as the target's cache has.
    """

    def __init__(self, head: DraftHead, slots: int, columns: int) -> None:
        self._head = head
        shape, like = head.shape, head.read_norm.weight
        # Nothing looks at a state before it is written, so it need not take memory before.
        self._states = like.new_empty(slots, columns, shape.hidden)
        self._keys = like.new_zeros(slots, shape.key_heads, columns, shape.head_size)
        self._values = torch.zeros_like(self._keys)
        positions = torch.arange(columns, device=like.device)[None]
        self._cosine, self._sine = (part[0, 0].to(like.dtype) for part in head.rotation(positions))
        self._slots = [_Slot() for _ in range(slots)]
        self._spare = like.new_empty(max(self._states[0].numel(), self._keys[0].numel()))

    @property
    def bytes(self) -> int:
        """Memory of all slots."""
        return self._states.nbytes + 2 * self._keys.nbytes

    def admit(self, row: SequenceState) -> int:
        """Take a row in; how many of its tokens' states are known, here or in a slot they are copied from."""
        shared = [common_prefix(slot.content, row.tokens[: row.cached]) for slot in self._slots]
        source = max(range(len(shared)), key=lambda i: (shared[i], i == row.slot))
        known, slot = shared[source], self._slots[row.slot]
        if source != row.slot and known:
            self._states[row.slot, :known] = self._states[source, :known]
            slot.first = slot.read = 0
        slot.row = row
        slot.read = min(slot.read, max(known - 1, 0))
        slot.first = min(slot.first, slot.read)
        return known

    def lend(self, row: SequenceState, source: int, length: int) -> int:
        """Take over what slot `source` knows of the row's first `length` tokens; how many of them are known then."""
        known = common_prefix(self._slots[source].content, row.tokens[:length])
        if known > row.cached:
            self._states[row.slot, :known] = self._states[source, :known]
        return max(known, row.cached)

    @torch.inference_mode()
    def exchange(self, one: int, other: int) -> None:
        """Let two slots change places, with their rows."""
        slots = self._slots
        length = max(len(slots[one].content), len(slots[other].content))
        exchange(self._states[one, :length], self._states[other, :length], self._spare)
        for part in (self._keys, self._values):
            exchange(part[one, :, :length], part[other, :, :length], self._spare)
        slots[one], slots[other] = slots[other], slots[one]

    @torch.inference_mode()
    def absorb(self, rows: Sequence[SequenceState], tapped: Tensor) -> None:
        """Keep the states of the T tokens [B, T, taps x d] that the target has just read from `row.cached` on."""
        # What pads is overwritten before anything looks at it.
        room = self._states.shape[1] - max(row.cached for row in rows)
        tapped = functional.pad(tapped, (0, 0, 0, min(padded_width(tapped.shape[1]), room) - tapped.shape[1]))
        starts = to_device([row.cached for row in rows], tapped.device)[:, None]
        slots = to_device([row.slot for row in rows], tapped.device)[:, None]
        self._states[slots, starts + torch.arange(tapped.shape[1], device=tapped.device)] = self._head.fused(tapped)

    def release(self, row: SequenceState) -> None:
        """The row leaves; what is known of it stays."""
        slot = self._slots[row.slot]
        slot.tokens, slot.row = row.tokens[: row.cached], None

    def read(self, rows: Sequence[SequenceState], embed: Embed, window: int) -> Tensor:
        """Read what the target has read since the last draft, and score with the last place of each row [B, 1, d].

        Rows have two tokens or more.
        """
        ends = [len(row.tokens) - 1 for row in rows]
        limit, width = min(_TOGETHER, *ends), 1
        for row, end, count in zip(rows, ends, self.take_unread(rows, window), strict=True):
            if count > limit:
                self._read([row], [end - 1], min(padded_width(count - 1), end - 1), embed, window)
            else:
                # Rows with less to read start earlier: what is read again is the same again.
                width = max(width, count)
        return self._read(rows, ends, min(padded_width(width), limit), embed, window)[:, -1:]

    def take_unread(self, rows: Sequence[SequenceState], window: int) -> list[int]:
        """How many places below its last each row has to read, at most a window; from now on they count as read."""
        counts = []
        for row in rows:
            slot, end = self._slots[row.slot], len(row.tokens) - 1
            begin = slot.begins(end, window)
            counts.append(end - begin)
            slot.first, slot.read = (begin if begin > slot.read else min(slot.first, begin)), end
        return counts

    def read_places(self, slots: Tensor, ends: Tensor, tokens: Tensor, embed: Embed, window: int) -> Tensor:
        """As `read`, for rows that are known on the device only.

        Args:
            slots: [B], int64.
            ends: [B], int64: a row's number of tokens less one; 0 where there is no row.
            tokens: [B, W], int64: the last W of each row, of which those count that it has.
            embed: embeddings.
            window: places to look back.
        """
        width = tokens.shape[1]
        places = ends[:, None] + torch.arange(-width, 0, device=slots.device)
        there = places >= 0
        columns = torch.where(there, places, self._states.shape[1] - 1)
        states = self._states[slots[:, None], columns].masked_fill(~there[..., None], 0.0)
        lows = (ends - width - window).clamp_(min=0)
        looked_at = _Columns(slots, lows[:, None] + torch.arange(window + width, device=slots.device))
        distance = places[:, None, :, None] - looked_at.index[:, None, None]
        # What is no place looks at anything: a look at nothing gives no number.
        mask = ((distance >= 0) & (distance < window)) | ~there[:, None, :, None]
        return self._layer(columns, columns, states, embed(tokens), looked_at, mask)[:, -1:]

    def extend(
        self,
        rows: Sequence[SequenceState],
        tree: Tree,
        level: Sequence[int],
        state: Tensor,
        embedded: Tensor,
        window: int,
    ) -> Tensor:
        """Go on behind drafted tokens of one depth [B, P, d]: what follows them is scored with.

        Args:
            rows: whose drafts are this tree.
            tree: of which token i has its place i behind the last that was read.
            level: the P tokens.
            state: the head's own states [B, P, d], from where those tokens were drafted.
            embedded: the tokens' embeddings [B, P, d].
            window: places to look back.
        """
        device, tree_mask = state.device, TreeMask.of((tree,), len(tree) + 1, state.device)
        first = to_device([len(row.tokens) - 2 for row in rows], device)
        index = to_device(level, device)
        ends = [len(row.tokens) - 1 + level[-1] for row in rows]
        lows = [max(len(row.tokens) - 1 - window, 0) for row in rows]
        looked_at = _Columns.of(rows, lows, ends, to_device([row.slot for row in rows], device))
        return self._extend(first, index, tree_mask, state, embedded, looked_at, window, first[:, None] + index)

    def extend_places(
        self,
        slots: Tensor,
        ends: Tensor,
        tree_mask: TreeMask,
        index: Tensor,
        last: int,
        state: Tensor,
        embedded: Tensor,
        window: int,
    ) -> Tensor:
        """As `extend`, for rows that are known on the device only.

        Args:
            slots: [B], int64.
            ends: [B], int64: a row's number of tokens less one; 0 where there is no row.
            tree_mask: of the one tree, without padding.
            index: [P], int64, the tokens of the level; the highest is `last`.
            last: on the host.
            state: [B, P, d].
            embedded: [B, P, d].
            window: places to look back.
        """
        first, riding = ends - 1, (ends > 0)[:, None]
        lows = (ends - window).clamp_(min=0)
        looked_at = _Columns(slots, lows[:, None] + torch.arange(window + last, device=slots.device))
        columns = torch.where(riding, first[:, None] + index, self._states.shape[1] - 1)
        return self._extend(first, index, tree_mask, state, embedded, looked_at, window, columns)

    def _extend(
        self,
        first: Tensor,
        index: Tensor,
        tree_mask: TreeMask,
        state: Tensor,
        embedded: Tensor,
        looked_at: _Columns,
        window: int,
        columns: Tensor,
    ) -> Tensor:
        """Run the layer on tokens `index` [P] of one tree for all rows, whose token 0 is at `first` [B]."""
        depths = tree_mask.depths[:, index]
        mask = tree_visibility(
            tree_mask.inside[:, index].expand(len(first), -1, -1),
            tree_mask.depths.expand(len(first), -1),
            depths.expand(len(first), -1),
            first,
            looked_at.index,
            window,
        )
        return self._layer(columns, (first[:, None] + depths), state, embedded, looked_at, mask)

    def _read(
        self, rows: Sequence[SequenceState], ends: Sequence[int], width: int, embed: Embed, window: int
    ) -> Tensor:
        """Run the layer on the `width` places below `ends`, on the target's states."""
        device = self._states.device
        tokens = [row.tokens[end - width + 1 : end + 1] for row, end in zip(rows, ends, strict=True)]
        places = to_device(ends, device)[:, None] + torch.arange(-width, 0, device=device)
        slots = to_device([row.slot for row in rows], device)
        states = self._states[slots[:, None], places]
        embedded = embed(to_device(tokens, device))
        looked_at = _Columns.of(rows, [max(end - width - window, 0) for end in ends], ends, slots)
        distance = places[:, None, :, None] - looked_at.index[:, None, None]
        mask = (distance >= 0) & (distance < window)
        return self._layer(places, places, states, embedded, looked_at, mask)

    def _layer(
        self, columns: Tensor, positions: Tensor, state: Tensor, embedded: Tensor, looked_at: _Columns, mask: Tensor
    ) -> Tensor:
        """Run the layer on T places: what it scores with [B, T, d], from states and embeddings.

        Args:
            columns: [B, T], where keys and values of these places are kept.
            positions: [B, T], what they are turned by.
            state: [B, T, d].
            embedded: [B, T, d].
            looked_at: columns that keys and values are taken from, S per row.
            mask: [B, 1, T, S], bool, which of them.
        """
        slots = looked_at.slots[:, None]
        stream = self._head.enter(state, embedded)
        rotation = self._cosine[positions][:, None], self._sine[positions][:, None]
        query, key, value = self._head.read(stream, rotation)
        self._keys[slots, :, columns] = key.transpose(1, 2)
        self._values[slots, :, columns] = value.transpose(1, 2)
        keys, values = looked_at.look(self._keys), looked_at.look(self._values)
        attended = functional.scaled_dot_product_attention(query, keys, values, mask, enable_gqa=True)
        return self._head.finish(stream, attended)
