"""The two steps of a block drafter, captured as CUDA graphs where the target's passes are: reading, and drafting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn import functional

from specchat.engine.cache.block_pool import BlockPool
from specchat.engine.cache.kv_cache import lazy_zeros
from specchat.engine.device.device import to_device
from specchat.engine.device.graphs import FIRST, LATER, Graphs, Inputs, Signature, Step
from specchat.engine.drafters.block.network import BlockNetwork, Turns
from specchat.engine.drafters.head.layer import RowStore
from specchat.engine.request import MAX_GAMMA
from specchat.engine.sampling import xtc
from specchat.engine.sampling.rng import Stream, uniforms
from specchat.engine.sampling.sampler import (
    NUMBERS,
    SamplingFlags,
    SamplingRows,
    coarse_flags,
    draw,
    most_likely,
    setting_numbers,
    standardise,
)
from specchat.engine.sequence.sequence import SequenceState

_FEWEST_COLUMNS = 256
"""Columns that captured steps attend to: this number times a power of two, or all."""


class ContextCache(RowStore):
    """Keys and values [slots, columns, L, G, D] of the context of every slot.

    Args:
        network: of the drafter.
        pool: the blocks of the target's cache, which has as many slots and columns.
        like: a tensor of the device and dtype.
    """

    def __init__(self, network: BlockNetwork, pool: BlockPool, like: Tensor) -> None:
        shape = network.shape
        size = pool.slots, pool.columns, shape.layers, shape.key_heads, shape.head_size
        self.keys, self.values = (lazy_zeros(size, like.device, like.dtype) for _ in range(2))
        super().__init__((self.keys, self.values), pool)

    def write(self, slots: Tensor, columns: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write keys and values [B, T, L, G, D] to columns [B, T] of slots [B]."""
        self.keys[slots[:, None], columns] = keys
        self.values[slots[:, None], columns] = values

    def seen(self, slots: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B, C, L, G, D] in columns [B, C] of slots [B]."""
        return self.keys[slots[:, None], columns], self.values[slots[:, None], columns]


class BlockSteps:
    """Reading of hidden states into the context, and drafting, for any number of rows.

    Args:
        network: of the drafter.
        cache: of its context.
        output: gives the output layer's results [..., V'] of what rows are scored with [..., d].
        embed: gives the target's embeddings [..., d] of tokens [...].
        vocabulary: [V'], the tokens that it scores; None for all.
        graphs: captures the steps, or calls them.
    """

    def __init__(
        self,
        network: BlockNetwork,
        cache: ContextCache,
        output: Callable[[Tensor], Tensor],
        embed: Callable[[Tensor], Tensor],
        vocabulary: Tensor | None,
        graphs: Graphs,
    ) -> None:
        self._network, self._cache, self._output, self._embed = network, cache, output, embed
        self._vocabulary, self._graphs, self._shape = vocabulary, graphs, network.shape
        self._positions = min(self._shape.proposals, MAX_GAMMA)
        self._widths = sorted({self._positions + 1, MAX_GAMMA + 1})
        """Numbers of tokens of a round, padded, where shapes are static."""
        places = torch.arange(cache.pool.columns + self._shape.rows, device=cache.keys.device)[None]
        self._cosine, self._sine = (part[0].to(cache.keys.dtype) for part in network.turns(places))

    def plan(self) -> None:
        """Plan to capture reading of a round, and drafting in a short text, for all numbers of rows."""
        for rows in reversed(self._graphs.counts):
            rank = FIRST if rows == 1 else LATER + rows
            self._graphs.plan(rank, *self._reading(rows, self._widths[0]))
            for flags in coarse_flags(rows):
                self._graphs.plan(rank, *self._drafting(rows, flags, self._columns(1)))

    @torch.inference_mode()
    def read(self, slots: Sequence[int], starts: Sequence[int], states: Tensor, lengths: Sequence[int]) -> None:
        """Write keys and values of tokens to the context.

        Args:
            slots: [B].
            starts: [B], the position of each row's first token.
            states: [B, T, taps x d], the target's hidden states.
            lengths: [B], how many of each row's T tokens count.
        """
        states = states[:, : max(lengths)].to(self._cache.keys.dtype)
        numbers: dict[str, ArrayLike] = {"slots": slots, "starts": starts, "lengths": lengths}
        width = next((width for width in self._widths if width >= states.shape[1]), 0)
        if not (self._graphs.enabled and width):  # a part of a prompt
            run = self._reading(len(slots), states.shape[1])[1]
            run({name: to_device(values, states.device) for name, values in numbers.items()} | {"states": states})
            return
        count = self._graphs.count(len(slots))
        numbers["lengths"] = [*lengths, *[0] * (count - len(slots))]
        self._graphs.call(*self._reading(count, width), numbers, {"states": states})

    @torch.inference_mode()
    def score(self, rows: Sequence[SequenceState]) -> tuple[Tensor, Tensor]:
        """What the positions of all rows are scored with [B, P, d], and their logits [B, P, V'] but for what the token
        before adds; not captured."""
        ends = [len(row.tokens) - 1 for row in rows]
        numbers = [row.slot for row in rows], ends, [row.tokens[-1] for row in rows]
        slots, places, last = (to_device(each, self._cosine.device) for each in numbers)
        outcome = self._block(slots, places, last, self._columns(max(ends)))
        return outcome, self._network.logits(self._output(outcome))

    @torch.inference_mode()
    def draft(self, rows: Sequence[SequenceState]) -> tuple[Tensor, Tensor | None]:
        """Draft for all positions of all rows, whose context has all tokens but the last one.

        Returns:
            The tokens [B, P], int64, and what each was drawn from, the one before it given, [B, P, V'], float32; None
            if no row draws.
        """
        graphs, sampling = self._graphs, [row.drafting for row in rows]
        count, flags = graphs.count(len(rows)), SamplingFlags.of(sampling).strict
        if graphs.enabled:
            flags = flags.coarse(count)
        ends = [len(row.tokens) - 1 for row in rows]
        numbers: dict[str, ArrayLike] = {
            "slots": [row.slot for row in rows],
            "ends": ends + [0] * (count - len(rows)),
            "last": [row.tokens[-1] for row in rows],
            "settings": setting_numbers(sampling),
            "u": uniforms([row.seed for row in rows], [row.rounds for row in rows], Stream.DRAFT, self._positions),
        }
        if flags.any_xtc:
            numbers["xtc"] = xtc.thresholds(rows, [range(self._positions)] * len(rows), self._positions)
        tokens, *q = graphs.call(*self._drafting(count, flags, self._columns(max(ends))), numbers)
        return tokens[: len(rows)], q[0][: len(rows)] if q else None

    def _columns(self, longest: int) -> int:
        """Columns before the last token that a pass attends to, of texts of up to this length."""
        reach, seen = self._shape.reach, longest
        if self._graphs.enabled:
            seen = _FEWEST_COLUMNS
            while seen < longest:
                seen *= 2
        return min(seen, self._cache.pool.columns, seen if reach is None else reach)

    def _turns(self, positions: Tensor) -> Turns:
        """Cosine and sine at positions [B, T]."""
        return self._cosine[positions], self._sine[positions]

    def _reading(self, rows: int, width: int) -> Step:
        """Reading of tokens."""

        def run(inputs: Inputs) -> list[Tensor]:
            states, last = inputs["states"], self._cache.pool.columns - 1
            offsets = torch.arange(states.shape[1], device=states.device)
            positions = inputs["starts"][:, None] + offsets
            columns = torch.where(offsets < inputs["lengths"][:, None], positions, last)
            self._cache.write(inputs["slots"], columns, *self._network.context(states, self._turns(positions)))
            return []

        def signature() -> Signature:
            size = rows, width, len(self._shape.taps) * self._shape.hidden
            numbers = dict.fromkeys(("slots", "starts", "lengths"), (rows,))
            return Signature(numbers, tensors={"states": (size, self._cache.keys.dtype)})

        return ("read", rows, width), run, signature

    def _drafting(self, rows: int, flags: SamplingFlags, count: int) -> Step:
        """Drafting for a number of rows with sampling flags, over a number of columns."""

        def run(inputs: Inputs) -> list[Tensor]:
            settings = SamplingRows.from_numbers(inputs["settings"], flags, inputs.get("xtc"))
            outcome, previous = self._block(inputs["slots"], inputs["ends"], inputs["last"], count), inputs["last"]
            scored = self._network.logits(self._output(outcome))
            tokens, distributions = list[Tensor](), list[Tensor]()
            for position in range(self._positions):
                logits = self._network.after(scored[:, position], outcome[:, position], previous)
                if flags.all_greedy:
                    place = most_likely(logits)
                else:
                    at = settings.at(torch.full_like(previous, position)[:, None])
                    distributions.append(standardise(logits[:, None], at)[:, 0])
                    place = draw(distributions[-1], inputs["u"][:, position])
                previous = place if self._vocabulary is None else self._vocabulary[place]
                tokens.append(previous)
            return [torch.stack(each, 1) for each in (tokens, distributions) if each]

        def signature() -> Signature:
            reals: dict[str, tuple[int, ...]] = {"settings": (rows, NUMBERS), "u": (rows, self._positions)}
            reals |= {"xtc": (rows, self._positions)} if flags.any_xtc else {}
            return Signature(dict.fromkeys(("slots", "ends", "last"), (rows,)), reals)

        return ("draft", rows, flags, count), run, signature

    def _block(self, slots: Tensor, ends: Tensor, last: Tensor, count: int) -> Tensor:
        """What the rows of positions are scored with [B, P, d].

        Args:
            slots: [B].
            ends: [B], positions of the last tokens.
            last: [B], the last tokens.
            count: C, columns of the context that are attended to.
        """
        network, shape = self._network, self._shape
        lowest = (ends - count).clamp(min=0) if shape.reach is not None else torch.zeros_like(ends)
        columns = lowest[:, None] + torch.arange(count, device=ends.device)
        tokens = functional.pad(last[:, None], (0, shape.rows - 1), value=shape.mask)
        turns = self._turns(ends[:, None] + torch.arange(shape.rows, device=ends.device))
        masks = network.visibility(ends, columns)
        outcome = network.block(self._embed(tokens), turns, *self._cache.seen(slots, columns), masks)
        return outcome[:, shape.first : shape.first + self._positions]
