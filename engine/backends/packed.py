"""Backend on the packed CPU kernels: a pass is one call, over rows of any lengths."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from specchat.engine.backends.packed_acceptance import PackedScores, PackedVerdict, accept_packed
from specchat.engine.backends.tensor_acceptance import TensorAcceptance
from specchat.engine.cache.kv_cache import KVCache
from specchat.engine.decoding.backend import Capabilities
from specchat.engine.decoding.proposal import Proposal, Support
from specchat.engine.decoding.tree import Tree
from specchat.engine.decoding.tree_part import TreePlace
from specchat.engine.device.device import require_memory
from specchat.engine.device.graphs import Graphs
from specchat.engine.errors import EngineError
from specchat.engine.kernels.decoder import Decoder
from specchat.engine.kernels.decoder_weights import DecoderShape
from specchat.engine.kernels.packed_matrix import Format, PackedMatrix
from specchat.engine.kernels.token_layout import TokenLayout
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.sequence.sequence import SequenceState

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


class PackedBackend:
    """One model on the quantised kernels, and its cache; see `engine.decoding.backend.Backend`.

    A token's bits depend on nothing but the tokens it sees, so that every pass is exact in the sense of
    `EngineConfig.exact`. Passes are not padded.

    Args:
        model: the weights.
        slots: rows of the cache.
        context: tokens per row.
        overhang: columns beyond the context, for rows that draft less than their batch.
        taps: depths of the hidden states that every pass returns.

    Raises:
        EngineError: the cache does not fit into memory.
    """

    device = CPU
    capabilities = Capabilities(ragged=True, packed=True)
    performance_warnings: ClassVar[list[str]] = []
    graph_bytes = 0

    def __init__(self, model: PackedWeights, slots: int, context: int, overhang: int, taps: Sequence[int] = ()) -> None:
        columns = context + overhang + 1
        self._model = model
        self.cache = _allocate(model, slots, columns)
        self._decoder = model.decoder(context, columns)
        self.packed_embedding, self._output = model.embedding, model.output
        self.context, self.taps = context, tuple(taps)
        self.vocabulary = model.shape.vocabulary
        self.short_context = model.short_context(context)
        self._decoder.attach(self.cache.keys, self.cache.values)
        self.penalties = Penalties(slots, context, CPU)
        self._reference = TensorAcceptance(Graphs(CPU, slots, None), self.penalties)

    def graphs(self, most: int) -> Graphs:
        """Functions of a drafter, called eagerly."""
        return Graphs(CPU, self.cache.slots, None, most)

    def width(self, length: int) -> int:
        """Passes are not padded."""
        return length

    @torch.inference_mode()
    def forward(self, inputs: Tensor, slots: Sequence[int], starts: Sequence[int]) -> Tensor:
        """Logits [B, T, V], float32, of token ids [B, T] or embeddings [B, T, d]."""
        return self.forward_with_states(inputs, slots, starts)[0]

    @torch.inference_mode()
    def forward_with_states(
        self, inputs: Tensor, slots: Sequence[int], starts: Sequence[int]
    ) -> tuple[Tensor, Tensor | None]:
        """Like `forward`, with the tapped hidden states [B, T, taps x hidden], float32."""
        rows, width = inputs.shape[:2]
        embeddings = inputs.flatten(0, 1) if inputs.is_floating_point() else None
        ids = [0] * (rows * width) if embeddings is not None else inputs.flatten().tolist()
        layout = TokenLayout.chains(slots, starts, [width] * rows)
        logits, tapped = self._decoder.run(ids, layout, range(len(ids)), torch.get_num_threads(), self.taps, embeddings)
        return logits.view(rows, width, -1), None if tapped is None else tapped.view(rows, width, -1)

    forward_fast = forward

    def extend(self, places: Sequence[TreePlace]) -> Tensor:
        """Feed drafted tokens of trees whose ancestors the cache holds: logits [n, V], float32."""
        ids = [place.token for place in places]
        logits, _, _ = self._decoder.run_all(ids, _layout_of_places(places), torch.get_num_threads(), likeliest=0)
        return logits

    def score(self, rows: Sequence[SequenceState], proposal: Proposal) -> PackedScores:
        """Scores of each row's last token and its draft."""
        drafted = proposal.on_host
        fed = [token for row, tokens in zip(rows, drafted, strict=True) for token in (row.tokens[-1], *tokens)]
        layout = _layout(proposal.trees, [row.slot for row in rows], [row.cached for row in rows])
        greedy = any(row.request.sampling.greedy for row in rows)
        logits, best, tapped = self._decoder.run_all(
            fed, layout, torch.get_num_threads(), self.taps, likeliest=int(greedy)
        )
        likeliest = [each[0] for each in best] if greedy else []
        if len(rows) == 1:
            return PackedScores([logits], [likeliest], None if tapped is None else [tapped])
        cuts = list(pairwise([0, *accumulate(len(tree) + 1 for tree in proposal.trees)]))
        return PackedScores(
            [logits[first:end] for first, end in cuts],
            [likeliest[first:end] for first, end in cuts],
            None if tapped is None else [tapped[first:end] for first, end in cuts],
        )

    def accept(
        self, rows: Sequence[SequenceState], proposal: Proposal, scores: PackedScores, gammas: Sequence[int]
    ) -> PackedVerdict:
        """Accept or reject the drafts."""
        return accept_packed(rows, proposal, scores, gammas, self._reference)

    def keep(self, rows: Sequence[SequenceState], verdict: PackedVerdict) -> None:
        """Move keys and values of accepted branches to consecutive columns."""
        for row, outcome in zip(rows, verdict.outcomes(), strict=True):
            if outcome.moves:
                self.cache.move(row.slot, [row.cached + node for node in outcome.path], row.cached + 1)

    def warm_up(self, supports: Sequence[Support | None] = ()) -> None:  # noqa: ARG002
        """Run a pass over several tokens."""
        self.forward(torch.zeros(1, 5, dtype=torch.long), [0], [0])

    @torch.inference_mode()
    def prefill(
        self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int], lengths: Sequence[int] | None = None
    ) -> Tensor | None:
        """Feed tokens [B, T]; their tapped hidden states."""
        rows, width = tokens.shape
        counts = [width] * rows if lengths is None else list(lengths)
        flat = [token for row, count in zip(tokens.tolist(), counts, strict=True) for token in row[:count]]
        layout = TokenLayout.chains(slots, starts, counts)
        _, tapped = self._decoder.run(flat, layout, (), torch.get_num_threads(), self.taps)
        return None if tapped is None else _by_row(tapped, counts, width)

    def embedding_rows(self, tokens: Tensor) -> Tensor:
        """Rows [..., d] of the embedding, float32."""
        return torch.from_numpy(self.packed_embedding.rows_of(tokens.flatten().numpy())).view(*tokens.shape, -1)

    def packed_output(self, tokens: Tensor) -> PackedMatrix | None:
        """Rows [n, d] of the output layer as they are stored; None where that is not as codes."""
        quantized = self._output.format < Format.BF16
        return self._output.picked(tokens.numpy()) if quantized else None

    def output_rows(self, tokens: Tensor) -> Tensor:
        """Rows [n, d] of the output layer, float32."""
        return torch.from_numpy(self._output.rows_of(tokens.numpy()))


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


def _layout(trees: Sequence[Tree], slots: Sequence[int], starts: Sequence[int]) -> TokenLayout:
    """Token layout of a pass over trees, one after the other; rows that are chains need no ancestor lists."""
    plain = TokenLayout.chains(slots, starts, [len(tree) + 1 for tree in trees])
    if not any(tree.branches for tree in trees):
        return plain
    positions, prefixes, ancestors, offsets = list[int](), list[int](), list[int](), [0]
    for tree, start in zip(trees, starts, strict=True):
        if not tree.branches:
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


def _layout_of_places(places: Sequence[TreePlace]) -> TokenLayout:
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
