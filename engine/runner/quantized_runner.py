"""A decoder on packed weights with a slot cache: a pass is one call of the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.errors import EngineError
from specchat.engine.kernels.chains import Chains
from specchat.engine.kernels.decoder import Decoder
from specchat.engine.kernels.decoder_weights import DecoderShape
from specchat.engine.kernels.packed_matrix import Format, PackedMatrix
from specchat.engine.runner.device import require_memory
from specchat.engine.runner.kv_cache import KVCache
from specchat.engine.runner.tree import Tree, chain
from specchat.engine.runner.tree_mask import TreeMask

Ints = NDArray[np.int32]
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

    def decoder(self, context: int, positions: int, layers: int | None = None) -> Decoder:
        """A decoder on the first layers (all if not given) for texts of up to `context` tokens, with room for so many
        positions."""


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
    """One model on the quantised kernels, and its cache; see `engine.runner.runner.Runner`.

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
    judges_all = True
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
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [B, T, V] and tapped hidden states [B, T, taps x hidden], float32; 0 behind a row's length."""
        rows, width = tokens.shape
        counts = [width] * rows if lengths is None else list(lengths)
        trees = [chain(count - 1) for count in counts] if tree_mask is None else tree_mask.trees
        logits, tapped = self._run(_flat(tokens, counts), _chains(trees, slots, starts), every=True)
        return _by_row(logits, counts, width), None if tapped is None else _by_row(tapped, counts, width)

    @torch.inference_mode()
    def forward_branches(self, tokens: Tensor, slot: int, start: int, tree: Tree) -> Tensor:
        """Logits [T, V], float32, of the last nodes of a tree, whose other nodes the cache holds."""
        return self._run(tokens, _last_nodes(tree, len(tokens), slot, start), every=True)[0]

    def first_layers(self, count: int) -> QuantizedRunner:
        """Cut off behind its first layers, on the same cache."""
        part = copy(self)
        part.taps, part._decoder = (), self._model.decoder(self.context, self.cache.columns, count)
        part._decoder.attach(self.cache.keys[:count], self.cache.values[:count])
        return part

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
        flat = np.array([token for row in tokens for token in row])
        threads = torch.get_num_threads()
        logits, best, tapped = self._decoder.run_all(
            flat, _chains(trees, slots, starts), threads, self.taps, likeliest=likeliest
        )
        rows = list(pairwise([0, *accumulate(map(len, tokens))]))
        found = [] if best is None else best.tolist()
        return Seen(
            [logits[first:end] for first, end in rows],
            [found[first:end] for first, end in rows],
            None if tapped is None else [tapped[first:end] for first, end in rows],
        )

    @torch.inference_mode()
    def prefill(
        self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int], lengths: Sequence[int] | None = None
    ) -> Tensor | None:
        """Feed tokens [B, T]; their tapped hidden states."""
        rows, width = tokens.shape
        counts = [width] * rows if lengths is None else list(lengths)
        tapped = self._run(_flat(tokens, counts), Chains.plain(slots, starts, counts), every=False)[1]
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

    def _run(self, tokens: Tensor, chains: Chains, *, every: bool) -> tuple[Tensor, Tensor | None]:
        """A pass over flat tokens; logits of every one or of none."""
        flat: NDArray[Any] = tokens.flatten().numpy()
        judged = np.arange(len(flat) if every else 0, dtype=np.int32)
        return self._decoder.run(flat, chains, judged, torch.get_num_threads(), self.taps)


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
    """The tokens that count of [B, T], one row after the other."""
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


def _chains(trees: Sequence[Tree], slots: Sequence[int], starts: Sequence[int]) -> Chains:
    """Where the tokens of trees stand, one after the other; those that do not branch see the cache alone."""
    lengths = [len(tree) + 1 for tree in trees]
    plain = Chains.plain(slots, starts, lengths)
    if all(tree == chain(len(tree)) for tree in trees):
        return plain
    positions, prefixes = plain.positions.copy(), plain.prefixes.copy()
    counts, ancestors = [np.zeros(1, dtype=np.int32)], []
    ends = np.cumsum([0, *lengths])
    for tree, start, (first, end) in zip(trees, starts, pairwise(ends.tolist()), strict=True):
        if tree == chain(len(tree)):
            counts.append(np.zeros(len(tree) + 1, dtype=np.int32))
            continue
        depths, before = _ancestors(tree)
        positions[first:end] = start + depths
        prefixes[first:end] = start
        counts.append(depths)
        ancestors.append(start + before)
    offsets = np.cumsum(np.concatenate(counts), dtype=np.int32)
    return Chains(
        slots=plain.slots,
        positions=positions,
        columns=plain.columns,
        prefixes=prefixes,
        ancestor_offsets=offsets,
        ancestors=np.concatenate(ancestors).astype(np.int32),
    )


def _last_nodes(tree: Tree, count: int, slot: int, start: int) -> Chains:
    """Where the last `count` nodes of a tree stand whose node 0 is in the column `start`."""
    first = len(tree) + 1 - count
    before = [[0, *tree.path(node)[:-1]] if node else [] for node in range(first, first + count)]
    return Chains(
        slots=np.full(count, slot, dtype=np.int32),
        positions=np.array(tree.depths[first:], dtype=np.int32) + np.int32(start),
        columns=np.arange(start + first, start + first + count, dtype=np.int32),
        prefixes=np.full(count, start, dtype=np.int32),
        ancestor_offsets=np.cumsum([0, *map(len, before)], dtype=np.int32),
        ancestors=np.array([start + node for nodes in before for node in nodes], dtype=np.int32),
    )


@lru_cache
def _ancestors(tree: Tree) -> tuple[Ints, Ints]:
    """How many tokens of the pass each one follows, and which, in order, one token's after another's."""
    before = [[0, *tree.path(token)[:-1]] if token else [] for token in range(len(tree) + 1)]
    flat = [other for each in before for other in each]
    return np.array([len(each) for each in before], np.int32), np.array(flat, np.int32)
