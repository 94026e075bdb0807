"""A draft head's layer in torch: on a GPU, and for targets that are not quantised."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from specchat.engine.decoding.tree import Tree
from specchat.engine.decoding.tree_mask import TreeMask, tree_visibility
from specchat.engine.device.padding import padded_width
from specchat.engine.device.to_device import to_device
from specchat.engine.drafters.growing.scores import Scores
from specchat.engine.drafters.head.layer import WINDOW, whole
from specchat.engine.drafters.head.states import States
from specchat.engine.request import MAX_GAMMA
from specchat.engine.sequence.sequence import SequenceState

Embed = Callable[[Tensor], Tensor]
"""Gives the target's embeddings [..., d] of tokens [...]."""
Score = Callable[[Tensor], Tensor]
"""Gives logits of the draft vocabulary [..., V'] of what a step gave [..., d]."""
_TOGETHER = 17
"""Places that rows read in one pass; who is further after reads alone first."""


class StateShape(Protocol):
    """Sizes of what is kept of every place."""

    @property
    def hidden(self) -> int:
        """d, of a state."""

    @property
    def key_heads(self) -> int:
        """G."""

    @property
    def head_size(self) -> int:
        """D."""


class HeadNetwork(Protocol):
    """A network of one layer, as `engine.drafters.head.network.DraftHead` describes it."""

    @property
    def shape(self) -> StateShape:
        """Sizes of what is kept."""

    def parameters(self) -> Iterator[Tensor]:
        """Weights, of the type and on the device that it computes in."""

    def fused(self, tapped: Tensor) -> Tensor:
        """States [B, T, d] from the target's hidden states [B, T, taps x hidden]."""

    def again(self, outcome: Tensor) -> Tensor:
        """States [B, T, d] from what the head gave itself [B, T, d]."""

    def enter(self, state: Tensor, embedded: Tensor) -> Tensor:
        """What the layer runs on [B, T, n], from states and embeddings."""

    def read(self, stream: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, heads, T, D]; keys and values [B, G, T, D]."""

    def finish(self, stream: Tensor, attended: Tensor) -> Tensor:
        """What the layer gives [B, T, d]."""

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine [B, 1, T, D] at positions [B, T]."""


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


class TorchLayer:
    """States, keys and values [slots, columns] of a head, and the passes over them.

    Args:
        head: the network.
        scores: gives logits of the draft vocabulary.
        embed: the target's embedding.
        slots: as many as the target's cache has.
        columns: as many as the target's cache has.
        window: places that a place sees, itself included.
    """

    deepest = MAX_GAMMA

    def __init__(
        self, head: HeadNetwork, scores: Score, embed: Embed, slots: int, columns: int, window: int = WINDOW
    ) -> None:
        self._head, self._scores, self._embed, self.window = head, scores, embed, window
        shape, like = head.shape, next(head.parameters())
        self._kept = States(like, slots, columns, shape.hidden)
        self._states = self._kept.stored
        self._keys = like.new_zeros(slots, shape.key_heads, columns, shape.head_size)
        self._values = torch.zeros_like(self._keys)
        positions = torch.arange(columns, device=like.device)[None]
        self._cosine, self._sine = (part[0, 0].to(like.dtype) for part in head.rotation(positions))
        self.outcome: Tensor = like.new_empty(0)
        """[B, P, d], what the last step scored with."""

    @property
    def bytes(self) -> int:
        """Memory of all slots."""
        return self._states.nbytes + 2 * self._keys.nbytes

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the states of the first `length` tokens."""
        self._kept.copy(source, target, length)

    @torch.inference_mode()
    def absorb(
        self,
        slots: Sequence[int],
        starts: Sequence[int],
        tapped: Tensor | Sequence[Tensor],
        lengths: Sequence[int] | None = None,
    ) -> None:
        """Keep the states of all T tokens."""
        del lengths  # what is not wanted is overwritten
        tapped = whole(tapped)
        room = self._states.shape[1] - max(starts)
        tapped = functional.pad(tapped, (0, 0, 0, min(padded_width(tapped.shape[1]), room) - tapped.shape[1]))
        self._kept.put(slots, starts, self._head.fused(tapped))

    def read(self, rows: Sequence[SequenceState], begins: Sequence[int], ends: Sequence[int]) -> Scores:
        """Read places of all rows together, padded to few widths."""
        limit = min(_TOGETHER, *ends)
        width = 1
        for row, begin, end in zip(rows, begins, ends, strict=True):
            if end - begin > limit:
                self._read([row], [end - 1], min(padded_width(end - 1 - begin), end - 1))
            else:
                # Rows with less to read start earlier: reading a place again gives the same.
                width = max(width, end - begin)
        self.outcome = self._read(rows, ends, min(padded_width(width), limit))[:, -1:]
        return self.score(self.outcome)

    def read_places(self, slots: Tensor, ends: Tensor, tokens: Tensor) -> Tensor:
        """As `read`, for rows that are known on the device only: what the last places are scored with [B, 1, d].

        Args:
            slots: [B], int64.
            ends: [B], int64: a row's number of tokens less one; 0 where there is no row.
            tokens: [B, W], int64: the last W of each row, of which those count that it has.
        """
        width, window = tokens.shape[1], self.window
        places = ends[:, None] + torch.arange(-width, 0, device=slots.device)
        there = places >= 0
        columns = torch.where(there, places, self._states.shape[1] - 1)
        states = self._states[slots[:, None], columns].masked_fill(~there[..., None], 0.0)
        lows = (ends - width - window).clamp_(min=0)
        looked_at = _Columns(slots, lows[:, None] + torch.arange(window + width, device=slots.device))
        distance = places[:, None, :, None] - looked_at.index[:, None, None]
        # What is no place looks at anything: a look at nothing gives no number.
        mask = ((distance >= 0) & (distance < window)) | ~there[:, None, :, None]
        return self._layer(columns, columns, states, self._embed(tokens), looked_at, mask)[:, -1:]

    def extend(
        self, rows: Sequence[SequenceState], tree: Tree, level: Sequence[int], parents: Sequence[int], tokens: Tensor
    ) -> Scores:
        """Continue after drafted tokens."""
        device, tree_mask = self._states.device, TreeMask.of((tree,), len(tree) + 1, self._states.device)
        state = self._head.again(self.outcome[:, to_device(parents, device)])
        first = to_device([len(row.tokens) - 2 for row in rows], device)
        index = to_device(level, device)
        ends = [len(row.tokens) - 1 + level[-1] for row in rows]
        lows = [max(len(row.tokens) - 1 - self.window, 0) for row in rows]
        looked_at = _Columns.of(rows, lows, ends, to_device([row.slot for row in rows], device))
        columns = first[:, None] + index
        self.outcome = self._extend(first, index, tree_mask, state, self._embed(tokens), looked_at, columns)
        return self.score(self.outcome)

    def extend_places(
        self,
        slots: Tensor,
        ends: Tensor,
        tree_mask: TreeMask,
        index: Tensor,
        last: int,
        outcome: Tensor,
        tokens: Tensor,
    ) -> Tensor:
        """As `PlacedLayer.extend_places`."""
        first, riding = ends - 1, (ends > 0)[:, None]
        lows = (ends - self.window).clamp_(min=0)
        looked_at = _Columns(slots, lows[:, None] + torch.arange(self.window + last, device=slots.device))
        columns = torch.where(riding, first[:, None] + index, self._states.shape[1] - 1)
        state = self._head.again(outcome)
        return self._extend(first, index, tree_mask, state, self._embed(tokens), looked_at, columns)

    def score_places(self, outcome: Tensor, depth: int) -> Scores:
        """Scores [B, P, V'] of what `read_places` or `extend_places` gave [B, P, d]."""
        del depth  # it is the same layer at all of them
        return self.score(outcome)

    def score(self, outcome: Tensor) -> Scores:
        """Scores [B, P, V'] of what a step gave [B, P, d]."""
        return Scores(self._scores(outcome))

    def _extend(
        self,
        first: Tensor,
        index: Tensor,
        tree_mask: TreeMask,
        state: Tensor,
        embedded: Tensor,
        looked_at: _Columns,
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
            self.window,
        )
        return self._layer(columns, (first[:, None] + depths), state, embedded, looked_at, mask)

    def _read(self, rows: Sequence[SequenceState], ends: Sequence[int], width: int) -> Tensor:
        """Run the layer on the `width` places below `ends`, on the target's states."""
        device = self._states.device
        tokens = [row.tokens[end - width + 1 : end + 1] for row, end in zip(rows, ends, strict=True)]
        places = to_device(ends, device)[:, None] + torch.arange(-width, 0, device=device)
        slots = to_device([row.slot for row in rows], device)
        states = self._states[slots[:, None], places]
        embedded = self._embed(to_device(tokens, device))
        looked_at = _Columns.of(rows, [max(end - width - self.window, 0) for end in ends], ends, slots)
        distance = places[:, None, :, None] - looked_at.index[:, None, None]
        mask = (distance >= 0) & (distance < self.window)
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
