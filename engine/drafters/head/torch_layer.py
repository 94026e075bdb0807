"""A draft head's layer in torch: on a GPU, and for targets that are not quantised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from specchat.engine.cache.block_pool import BlockPool
from specchat.engine.cache.kv_cache import lazy_zeros
from specchat.engine.decoding.tree_mask import tree_visibility
from specchat.engine.device.device import padded_width
from specchat.engine.drafters.head.layer import WINDOW, HeadLayer, Level, Rows

LONGEST_LOOK = 2048
"""Places that a published head looks back: the longest distance in its training."""


class TorchLayer(HeadLayer):
    """States, keys and values [slots, columns] of a head, and the passes over them.

    Args:
        head: a network of one layer, with the methods of `engine.drafters.head.network.DraftHead`.
        scores: gives logits of the draft vocabulary [..., V'] of what a step gave [..., d].
        embed: gives the target's embeddings [..., d] of tokens [...].
        pool: the blocks of the target's cache, which has as many slots and columns.
        window: places that a place sees, itself included.
    """

    def __init__(
        self,
        head: Any,
        scores: Callable[[Tensor], Tensor],
        embed: Callable[[Tensor], Tensor],
        pool: BlockPool,
        window: int = WINDOW,
    ) -> None:
        shape = head.shape
        like: Tensor = next(head.parameters())
        cached = (shape.key_heads, shape.head_size)
        states, self._keys, self._values = (
            lazy_zeros((pool.slots, pool.columns, *size), like.device, like.dtype)
            for size in ((shape.hidden,), cached, cached)
        )
        super().__init__((states, self._keys, self._values), pool, window)
        self._head, self._scores, self._embed = head, scores, embed
        positions = torch.arange(pool.columns, device=like.device)[None]
        self._cosine, self._sine = (part[0, 0].to(like.dtype) for part in head.rotation(positions))

    def width(self, places: int) -> int:
        """One of few."""
        return padded_width(places)

    @torch.inference_mode()
    def fused(self, tapped: Tensor, room: int) -> Tensor:
        """States, of a number of tokens that is padded."""
        padding = min(padded_width(tapped.shape[1]), room) - tapped.shape[1]
        states: Tensor = self._head.fused(functional.pad(tapped, (0, 0, 0, padding)))
        return states

    def read(self, rows: Rows, tokens: Tensor) -> Tensor:
        """Run the layer on the last places."""
        (slots, ends, longest), width = rows, tokens.shape[1]
        places = ends[:, None] + torch.arange(-width, 0, device=slots.device)
        there = places >= 0
        columns = torch.where(there, places, self.states.shape[1] - 1)
        states = self.states[slots[:, None], columns].masked_fill(~there[..., None], 0.0)
        seen = _columns(ends - width - self.window, min(width + self.window, longest))
        distance = places[:, None, :, None] - seen[:, None, None]
        # What is no place looks at anything: a look at nothing gives no number.
        mask = ((distance >= 0) & (distance < self.window)) | ~there[:, None, :, None]
        stream = self._head.enter(states, self._embed(tokens))
        return self._run(stream, columns, (slots[:, None], columns, seen), mask)[:, -1:]

    def follow(self, rows: Rows, level: Level, outcome: Tensor, tokens: Tensor) -> Tensor:
        """Run the layer on drafted tokens."""
        slots, ends, longest = rows
        first, tree, count = ends - 1, level.mask, len(slots)
        seen = _columns(ends - self.window, min(self.window, longest) + level.last)
        columns = torch.where((ends > 0)[:, None], first[:, None] + level.tokens, self.states.shape[1] - 1)
        depths, inside = tree.depths[:, level.tokens], tree.inside[:, level.tokens].expand(count, -1, -1)
        every, own = (each.expand(count, -1) for each in (tree.depths, depths))
        mask = tree_visibility(inside, every, own, first, seen, self.window)
        stream = self._head.enter(self._head.again(outcome), self._embed(tokens))
        return self._run(stream, first[:, None] + depths, (slots[:, None], columns, seen), mask)

    def score(self, outcome: Tensor, depth: int) -> Tensor:  # noqa: ARG002 it is the same layer at all of them
        """Logits of the draft vocabulary."""
        return self._scores(outcome)

    def _run(self, stream: Tensor, positions: Tensor, places: tuple[Tensor, Tensor, Tensor], mask: Tensor) -> Tensor:
        """Run the layer on T places: what it scores with [B, T, d].

        Args:
            stream: [B, T, n], its input.
            positions: [B, T], what queries and keys are turned by.
            places: slots [B, 1], columns to write [B, T], and columns that are seen [B, S].
            mask: [B, 1, T, S], bool, which of these each place sees.
        """
        cosine, sine = self._turns(positions)
        query, key, value = self._head.read(stream, (cosine[:, None], sine[:, None]))
        keys, values = self.stored(places, key, value)
        attended = functional.scaled_dot_product_attention(query, keys, values, mask, enable_gqa=True)
        scored: Tensor = self._head.finish(stream, attended)
        return scored

    def _turns(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine [B, T, head size] at positions [B, T]."""
        return self._cosine[positions], self._sine[positions]

    def stored(self, places: tuple[Tensor, Tensor, Tensor], key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values [B, G, T, D]; return all that the pass sees [B, G, S, D].

        Args:
            places: slots [B, 1], columns to write [B, T], and columns that are seen [B, S].
            key: of the pass.
            value: of the pass.
        """
        own, columns, seen = places
        seen = seen.clamp(max=self.states.shape[1] - 1)
        self._keys[own, columns] = key.transpose(1, 2)
        self._values[own, columns] = value.transpose(1, 2)
        keys, values = (stored[own, seen].transpose(1, 2) for stored in (self._keys, self._values))
        return keys, values


def _columns(lows: Tensor, count: int) -> Tensor:
    """[B, `count`], int64: columns from `lows` [B] on, which are 0 at least."""
    return lows.clamp(min=0)[:, None] + torch.arange(count, device=lows.device)
