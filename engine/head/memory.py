"""What a draft head knows of every slot: states of what the target has read, keys and values of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from engine.forest import Forest, visible
from engine.head.network import DraftHead
from engine.row import Row
from engine.scheduler import common_prefix
from engine.to_device import to_device
from engine.tree import Tree
from engine.widths import padded_width

_TOGETHER = 17
"""Places that rows read in one pass; who is further behind reads alone first."""


@dataclass(slots=True)
class _Slot:
    tokens: list[int] = field(default_factory=list)
    """What is in the slot, while no row is."""
    row: Row | None = None
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
        shape, like = head.shape, head.fuse.weight
        # Nothing looks at a state before it is written, so it need not take memory before.
        self._states = like.new_empty(slots, columns, shape.hidden)
        self._keys = like.new_zeros(slots, shape.key_heads, columns, shape.head_size)
        self._values = torch.zeros_like(self._keys)
        positions = torch.arange(columns, device=like.device)[None]
        self._cosine, self._sine = (part[0, 0].to(like.dtype) for part in head.rotation(positions))
        self._slots = [_Slot() for _ in range(slots)]

    @property
    def bytes(self) -> int:
        """Memory of all slots."""
        return self._states.nbytes + 2 * self._keys.nbytes

    def admit(self, row: Row) -> int:
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

    def lend(self, row: Row, source: int, length: int) -> int:
        """Take over what slot `source` knows of the row's first `length` tokens; how many of them are known then."""
        known = common_prefix(self._slots[source].content, row.tokens[:length])
        if known > row.cached:
            self._states[row.slot, :known] = self._states[source, :known]
        return max(known, row.cached)

    @torch.inference_mode()
    def absorb(self, rows: Sequence[Row], tapped: Tensor) -> None:
        """Keep the states of the T tokens [B, T, taps x d] that the target has just read from `row.cached` on."""
        # What pads is overwritten before anything looks at it.
        room = self._states.shape[1] - max(row.cached for row in rows)
        tapped = functional.pad(tapped, (0, 0, 0, min(padded_width(tapped.shape[1]), room) - tapped.shape[1]))
        starts = to_device([row.cached for row in rows], tapped.device)[:, None]
        slots = to_device([row.slot for row in rows], tapped.device)[:, None]
        self._states[slots, starts + torch.arange(tapped.shape[1], device=tapped.device)] = self._head.fused(tapped)

    def release(self, row: Row) -> None:
        """The row leaves; what is known of it stays."""
        slot = self._slots[row.slot]
        slot.tokens, slot.row = row.tokens[: row.cached], None

    def read(self, rows: Sequence[Row], embedding: Tensor, window: int) -> Tensor:
        """Read what the target has read since the last draft, and score with the last place of each row [B, 1, d].

        Rows have two tokens or more.
        """
        ends = [len(row.tokens) - 1 for row in rows]
        begins = [self._slots[row.slot].begins(end, window) for row, end in zip(rows, ends, strict=True)]
        limit = min(_TOGETHER, *ends)
        width = 1
        for row, begin, end in zip(rows, begins, ends, strict=True):
            slot = self._slots[row.slot]
            if end - begin > limit:
                self._read([row], [end - 1], min(padded_width(end - 1 - begin), end - 1), embedding, window)
            else:
                # Rows with less to read start earlier: what is read again is the same again.
                width = max(width, end - begin)
            slot.first, slot.read = (begin if begin > slot.read else min(slot.first, begin)), end
        return self._read(rows, ends, min(padded_width(width), limit), embedding, window)[:, -1:]

    def extend(
        self, rows: Sequence[Row], tree: Tree, level: Sequence[int], state: Tensor, embedded: Tensor, window: int
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
        device, forest = state.device, Forest.of((tree,), len(tree) + 1, state.device)
        first = to_device([len(row.tokens) - 2 for row in rows], device)
        index = to_device(level, device)
        depths = forest.depths[:, index]
        low = max(min(len(row.tokens) for row in rows) - 1 - window, 0)
        columns = torch.arange(low, max(len(row.tokens) for row in rows) - 1 + level[-1], device=device)
        mask = visible(
            forest.inside[:, index].expand(len(rows), -1, -1),
            forest.depths.expand(len(rows), -1),
            depths.expand(len(rows), -1),
            first,
            columns,
            window,
        )
        return self._layer(rows, first[:, None] + index, first[:, None] + depths, state, embedded, low, mask)

    def _read(self, rows: Sequence[Row], ends: Sequence[int], width: int, embedding: Tensor, window: int) -> Tensor:
        """Run the layer on the `width` places below `ends`, on the target's states."""
        device = embedding.device
        tokens = [row.tokens[end - width + 1 : end + 1] for row, end in zip(rows, ends, strict=True)]
        places = to_device(ends, device)[:, None] + torch.arange(-width, 0, device=device)
        states = self._states[to_device([row.slot for row in rows], device)[:, None], places]
        embedded = functional.embedding(to_device(tokens, device), embedding)
        low = max(min(ends) - width - window, 0)
        distance = places[:, None, :, None] - torch.arange(low, max(ends), device=device)
        mask = (distance >= 0) & (distance < window)
        return self._layer(rows, places, places, states, embedded, low, mask)

    def _layer(
        self,
        rows: Sequence[Row],
        columns: Tensor,
        positions: Tensor,
        state: Tensor,
        embedded: Tensor,
        low: int,
        mask: Tensor,
    ) -> Tensor:
        """Run the layer on T places: what it scores with [B, T, d], from states and embeddings.

        Args:
            rows: B.
            columns: [B, T], where keys and values of these places are kept.
            positions: [B, T], what they are turned by.
            state: [B, T, d].
            embedded: [B, T, d].
            low: the first column that is looked at.
            mask: [B, 1, T, S], bool, which of the columns from there on.
        """
        slots = to_device([row.slot for row in rows], state.device)
        stream = self._head.enter(state, embedded)
        rotation = self._cosine[positions][:, None], self._sine[positions][:, None]
        query, key, value = self._head.read(stream, rotation)
        self._keys[slots[:, None], :, columns] = key.transpose(1, 2)
        self._values[slots[:, None], :, columns] = value.transpose(1, 2)
        high = low + mask.shape[-1]
        keys, values = self._keys[slots, :, low:high], self._values[slots, :, low:high]
        attended = functional.scaled_dot_product_attention(query, keys, values, mask, enable_gqa=True)
        return self._head.finish(stream, attended)
