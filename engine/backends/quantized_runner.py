"""A decoder on packed weights with a slot cache: a pass is one call of the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from specchat.engine.cache.kv_cache import KVCache
from specchat.engine.decoding.tree import Tree, chain
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.decoding.tree_part import TreePlace
from specchat.engine.device.device import require_memory
from specchat.engine.errors import EngineError
from specchat.engine.kernels.decoder import Decoder
from specchat.engine.kernels.decoder_weights import DecoderShape
from specchat.engine.kernels.packed_matrix import Format, PackedMatrix
from specchat.engine.kernels.token_layout import TokenLayout

CPU = torch.device("cpu")


class PackedWeights(Protocol):
    """A model whose weights are packed."""

    @property
    def embedding(self) -> PackedMatrix:
        """[vocabulary, hidden]."""

    @property
    def output(self) -> PackedMatrix:
        """[vocabulary, hidden]."""

    @property
    def shape(self) -> DecoderShape:
        """Sizes and constants."""

    @property
    def layers(self) -> int:
        """How many."""

    def short_context(self, context: int) -> int | None:
        """Context of the short set of rotary factors, where a decoder for texts of `context` tokens has the long."""

    def decoder(self, context: int, positions: int) -> Decoder:
        """A decoder for texts of up to `context` tokens, with tables of `positions` rotary positions."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a pass over rows of their own lengths has given, row by row."""

    logits: list[Tensor]
    """[T, V] each, float32; valid until the next pass."""
    best: list[list[list[int]]]
    """The likeliest tokens behind every token, -1 where logits are not numbers; empty where they were not wanted."""
    tapped: list[Tensor] | None
    """Hidden states [T, taps x hidden] each."""


class QuantizedRunner:
    """One model on the quantised kernels, and its cache; see `engine.backends.runner.Runner`.

    A token's bits depend on nothing but the tokens it sees, so that every pass is exact in the sense of
    `EngineConfig.exact`. Passes are not padded.

    Args:
        model: the weights.
        slots: rows of the cache.
        context: tokens per row.
        overhang: columns beyond the context, for rows that draft less than their batch.
        taps: hidden states to hand out with every pass, by depth.

    Raises:
        EngineError: the cache does not fit into memory.
    """

    device = CPU
    branches = True
    graph_runner = None

    def __init__(self, model: PackedWeights, slots: int, context: int, overhang: int, taps: Sequence[int] = ()) -> None:
        columns = context + overhang + 1
        self._model = model
        self.cache = _allocate(model, slots, columns)
        self._decoder = model.decoder(context, columns)
        self.embedding, self._output = model.embedding, model.output
        self.context, self.taps = context, tuple(taps)
        self.vocabulary = model.shape.vocabulary
        self.short_context = model.short_context(context)
        self._decoder.attach(self.cache.keys, self.cache.values)

    @property
    def hindrances(self) -> list[str]:
        """None."""
        return []

    def width(self, length: int) -> int:
        """A pass costs what its tokens do."""
        return length

    def forward(self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int]) -> Tensor:
        """Logits [B, T, V], float32."""
        return self.forward_tapped(tokens, slots, starts)[0]

    forward_as_it_comes = forward

    @torch.inference_mode()
    def forward_tapped(
        self,
        tokens: Tensor,
        slots: Sequence[int],
        starts: Sequence[int],
        tree_mask: TreeMask | None = None,
        lengths: Sequence[int] | None = None,
        entered: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [B, T, V] and tapped hidden states [B, T, taps x hidden], float32; 0 behind a row's length."""
        rows, width = (tokens if entered is None else entered).shape[:2]
        counts = [width] * rows if lengths is None else list(lengths)
        trees = [chain(count - 1) for count in counts] if tree_mask is None else tree_mask.trees
        if entered is not None:
            tokens, entered = tokens.new_zeros(rows, width), _flat(entered, counts).flatten(0, -2)
        logits, tapped = self._run(_flat(tokens, counts), _chains(trees, slots, starts), every=True, entered=entered)
        return _by_row(logits, counts, width), None if tapped is None else _by_row(tapped, counts, width)

    def extend(self, places: Sequence[TreePlace]) -> Tensor:
        """Feed drafted tokens behind those of their trees that the cache holds: logits [n, V], float32, of n places."""
        ids = [place.token for place in places]
        logits, _, _ = self._decoder.run_all(ids, _behind(places), torch.get_num_threads(), likeliest=0)
        return logits

    def capture(self) -> None:
        """There are no graphs on a CPU."""

    def score(
        self,
        tokens: Sequence[Sequence[int]],
        slots: Sequence[int],
        starts: Sequence[int],
        trees: Sequence[Tree],
        *,
        likeliest: int,
    ) -> Seen:
        """One pass over rows of their own lengths.

        Args:
            tokens: of each row, its last one and the drafted ones behind it.
            slots: the slot of each row.
            starts: the position of each row's first token.
            trees: how the drafted tokens follow each other.
            likeliest: how many of the likeliest tokens behind each one are wanted.
        """
        lengths = [1 + len(tree) for tree in trees]
        flat = [token for row in tokens for token in row]
        threads = torch.get_num_threads()
        logits, best, tapped = self._decoder.run_all(
            flat, _chains(trees, slots, starts), threads, self.taps, likeliest=likeliest
        )
        if len(lengths) == 1:
            return Seen([logits], [best], tapped if tapped is None else [tapped])
        rows = list(pairwise([0, *accumulate(lengths)]))
        return Seen(
            [logits[first:end] for first, end in rows],
            [best[first:end] for first, end in rows],
            None if tapped is None else [tapped[first:end] for first, end in rows],
        )

    @torch.inference_mode()
    def prefill(
        self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int], lengths: Sequence[int] | None = None
    ) -> Tensor | None:
        """Feed tokens [B, T]; their tapped hidden states."""
        rows, width = tokens.shape
        counts = [width] * rows if lengths is None else list(lengths)
        tapped = self._run(_flat(tokens, counts), TokenLayout.chains(slots, starts, counts), every=False)[1]
        return None if tapped is None else _by_row(tapped, counts, width)

    def embedding_rows(self, tokens: Tensor) -> Tensor:
        """Rows [..., d] of the embedding, float32."""
        return torch.from_numpy(self.embedding.rows_of(tokens.flatten().numpy())).view(*tokens.shape, -1)

    def output_part(self, tokens: Tensor) -> PackedMatrix | None:
        """Rows [n, d] of the output layer as they are stored; None where that is not as codes."""
        quantized = self._output.format < Format.BF16
        return self._output.picked(tokens.numpy()) if quantized else None

    def output_rows(self, tokens: Tensor) -> Tensor:
        """Rows [n, d] of the output layer, float32."""
        return torch.from_numpy(self._output.rows_of(tokens.numpy()))

    def _run(
        self, tokens: Tensor, chains: TokenLayout, *, every: bool, entered: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """A pass over flat tokens; logits of every one or of none."""
        flat: list[int] = tokens.flatten().tolist()
        judged = range(len(flat) if every else 0)
        return self._decoder.run(flat, chains, judged, torch.get_num_threads(), self.taps, entered)


def _allocate(model: PackedWeights, slots: int, columns: int) -> KVCache:
    shape = model.shape
    size = 2 * model.layers * shape.key_heads * shape.head_size * torch.float16.itemsize * slots * columns
    require_memory(CPU, size, f"a cache of {slots} x {columns} tokens")
    try:
        return KVCache([(shape.key_heads, shape.head_size) * 2] * model.layers, slots, columns, CPU, torch.float16)
    except (RuntimeError, MemoryError):
        raise EngineError(
            f"a cache of {slots} x {columns} tokens needs {size / 1e9:.1f} GB and does not fit: lower --context"
        ) from None


def _flat(tokens: Tensor, counts: Sequence[int]) -> Tensor:
    """The tokens that count of [B, T], or what is read of them [B, T, d], one row after the other."""
    if min(counts) == tokens.shape[1]:
        return tokens
    return torch.cat([row[:count] for row, count in zip(tokens, counts, strict=True)])


def _by_row(values: Tensor, counts: Sequence[int], width: int) -> Tensor:
    """[B, T, n] from the values [sum of counts, n] of rows one after the other."""
    if min(counts) == width:
        return values.view(len(counts), width, -1)
    rows = values.new_empty(len(counts), width, values.shape[-1])
    ends = np.cumsum(counts).tolist()
    for row, count, end in zip(rows, counts, ends, strict=True):
        row[:count] = values[end - count : end]
        row[count:] = 0
    return rows


def _chains(trees: Sequence[Tree], slots: Sequence[int], starts: Sequence[int]) -> TokenLayout:
    """Where the tokens of trees stand, one after the other; those that do not branch see the cache alone."""
    plain = TokenLayout.chains(slots, starts, [len(tree) + 1 for tree in trees])
    if all(tree == chain(len(tree)) for tree in trees):
        return plain
    positions, prefixes, ancestors, offsets = list[int](), list[int](), list[int](), [0]
    for tree, start in zip(trees, starts, strict=True):
        if tree == chain(len(tree)):
            positions += range(start, start + len(tree) + 1)
            prefixes += range(start, start + len(tree) + 1)
            offsets += offsets[-1:] * (len(tree) + 1)
            continue
        depths, before = _ancestors(tree)
        positions += [start + depth for depth in depths]
        prefixes += [start] * len(depths)
        offsets += [len(ancestors) + end for end in accumulate(depths)]
        ancestors += [start + other for other in before]
    return TokenLayout(
        slots=plain.slots,
        positions=positions,
        columns=plain.columns,
        prefixes=prefixes,
        ancestor_offsets=offsets,
        ancestors=ancestors,
    )


def _behind(places: Sequence[TreePlace]) -> TokenLayout:
    """Where tokens stand that are fed after those before them in their trees."""
    return TokenLayout(
        slots=[place.slot for place in places],
        positions=[place.first + len(place.path) + 1 for place in places],
        columns=[place.first + place.column for place in places],
        prefixes=[place.first + 1 for place in places],
        ancestor_offsets=[0, *accumulate(len(place.path) for place in places)],
        ancestors=[place.first + before for place in places for before in place.path],
    )


@lru_cache(maxsize=1024)
def _ancestors(tree: Tree) -> tuple[list[int], list[int]]:
    """How many tokens of the pass each one follows, and which, in order, one token's after another's."""
    before = [[0, *tree.path(token)[:-1]] if token else [] for token in range(len(tree) + 1)]
    return [len(each) for each in before], [other for each in before for other in each]
