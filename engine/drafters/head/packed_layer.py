"""A draft head's layer on the quantised kernels: a step is one call."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.decoding.tree import BRANCHES, Tree
from specchat.engine.drafters.growing.scores import Place, Scores
from specchat.engine.drafters.head.layer import WINDOW
from specchat.engine.drafters.head.network import DraftHead
from specchat.engine.kernels.decoder_weights import DecoderShape, DecoderWeights, LayerWeights, check_sizes
from specchat.engine.kernels.draft_head import STATE, HeadWeights, PackedHead
from specchat.engine.kernels.library import KernelError
from specchat.engine.kernels.packed_matrix import PackedMatrix
from specchat.engine.kernels.quantized_layers import QuantizedLinear
from specchat.engine.kernels.token_layout import TokenLayout
from specchat.engine.kernels.tree_growth import GrownTree, GrowthRules, TargetStates, TreeRequest
from specchat.engine.request import MAX_GAMMA
from specchat.engine.sequence.sequence import SequenceState

_MOST_UNFUSED = 64
"""Tokens whose hidden states are kept until they are needed: rounds that do not draft need not wait for the head."""

_TIMED = 3
"""Steps that are timed to know what one takes."""


class PackedLayer:
    """States, keys and values [slots, columns] of a head, and the passes over them.

    Args:
        head: all of its linear layers are `QuantizedLinear`.
        scores: [V', d], gives logits of the draft vocabulary.
        embedding: [V, d], the target's.
        slots: as many as the target's cache has.
        columns: as many as the target's cache has.
        window: places that a place sees, itself included.

    Raises:
        KernelError: the kernels cannot compute with these sizes.
    """

    deepest = MAX_GAMMA

    def __init__(
        self,
        head: DraftHead,
        scores: PackedMatrix,
        embedding: PackedMatrix,
        slots: int,
        columns: int,
        window: int = WINDOW,
    ) -> None:
        shape = head.shape
        self.window = window
        self._head = PackedHead(_weights(head, scores, embedding, columns, window))
        # Nothing looks at a place before it is written, so that it need not take memory before.
        self._states = torch.empty(slots, columns, shape.hidden)
        self._keys = torch.empty(slots, shape.key_heads, columns, shape.head_size, dtype=torch.float16)
        self._values = torch.empty_like(self._keys)
        self._head.attach(self._states, self._keys, self._values)
        self._scored = 1
        """Places per row that the last step scored."""
        self._read: list[TargetStates] = []
        """What the target has read and no state was made of."""
        self._unfused = 0

    @property
    def bytes(self) -> int:
        """Memory of all slots."""
        return self._states.nbytes + 2 * self._keys.nbytes

    def time_step(self) -> float:
        """Seconds of a step over one place, the fastest of a few; no slot may be in use."""
        self._states[0, 0] = 0
        times = []
        for _ in range(_TIMED):
            started = time.perf_counter()
            self._run([0], TokenLayout.chains([0], [0], [1]), [STATE], [0], 1)
            times.append(time.perf_counter() - started)
        return min(times)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the states of the first `length` tokens, by numpy for the reason that `KVCache.copy` gives."""
        self._fuse()
        states = self._states.numpy()
        states[target, :length] = states[source, :length]

    def absorb(
        self,
        slots: Sequence[int],
        starts: Sequence[int],
        tapped: Tensor | Sequence[Tensor],
        lengths: Sequence[int] | None = None,
    ) -> None:
        """Keep the states of the tokens that are wanted; they are made when they are needed for them."""
        counts = [len(part) for part in tapped] if lengths is None else lengths
        for part, slot, start, count in zip(tapped, slots, starts, counts, strict=True):
            self._read.append(
                TargetStates(slot, start, (part if part.shape[0] == count else part[:count]).contiguous())
            )
            self._unfused += count
        if self._unfused >= _MOST_UNFUSED:
            self._fuse()

    def _fuse(self) -> None:
        """Make the states of what the target has read since the last time."""
        if self._read:
            self._head.write_states(self._read, torch.get_num_threads())
            self._read, self._unfused = [], 0

    def grow(
        self, wanted: Sequence[TreeRequest], q: Tensor | None, known: Tensor, rules: GrowthRules
    ) -> tuple[list[GrownTree], int]:
        """All steps of the trees of B rows in one call (`PackedHead.grow`)."""
        grown = self._head.grow(self._read, wanted, q, known, rules, torch.get_num_threads())
        self._read, self._unfused = [], 0
        return grown

    def read(self, rows: Sequence[SequenceState], begins: Sequence[int], ends: Sequence[int]) -> Scores:
        """Read places of all rows, of each as many as it has."""
        self._fuse()
        # The last place is scored with even where it has been read.
        begins = [min(begin, end - 1) for begin, end in zip(begins, ends, strict=True)]
        counts = [end - begin for begin, end in zip(begins, ends, strict=True)]
        ids = [
            token
            for row, begin, end in zip(rows, begins, ends, strict=True)
            for token in row.tokens[begin + 1 : end + 1]
        ]
        chains = TokenLayout.chains([row.slot for row in rows], begins, counts)
        self._scored = 1
        return self._run(ids, chains, [STATE] * len(ids), [end - 1 for end in accumulate(counts)], len(rows))

    def extend(
        self, rows: Sequence[SequenceState], tree: Tree, level: Sequence[int], parents: Sequence[int], tokens: Tensor
    ) -> Scores:
        """Continue after drafted tokens."""
        ids, count = tokens.tolist(), len(level)
        paths = [tree.path(token)[:-1] for token in level]
        places = [
            Place(row, ids[b][i], level[i], paths[i], b * self._scored + parents[i])
            for b, row in enumerate(rows)
            for i in range(count)
        ]
        scores = self.go_on(places)
        self._scored = count
        return Scores(scores.logits.view(len(rows), count, -1), scores.best, scores.shares)

    def go_on(self, places: Sequence[Place]) -> Scores:
        """Score [1, n, V'] what follows n drafted tokens; those of a row stand next to each other."""
        before = [len(place.row.tokens) - 2 for place in places]
        chains = TokenLayout(
            slots=[place.row.slot for place in places],
            positions=[first + 1 + len(place.path) for first, place in zip(before, places, strict=True)],
            columns=[first + place.column for first, place in zip(before, places, strict=True)],
            prefixes=[first + 1 for first in before],
            ancestor_offsets=[0, *accumulate(len(place.path) for place in places)],
            ancestors=[first + column for first, place in zip(before, places, strict=True) for column in place.path],
        )
        self._scored = len(places)
        sources = [place.source for place in places]
        return self._run([place.token for place in places], chains, sources, range(len(places)), 1)

    def _run(
        self, ids: Sequence[int], chains: TokenLayout, sources: Sequence[int], judged: Sequence[int], rows: int
    ) -> Scores:
        scores = self._head.run(ids, chains, sources, judged, BRANCHES, torch.get_num_threads())
        return Scores(scores.logits.view(rows, len(judged) // rows, -1), scores.best, scores.shares)


def can_be_packed(head: DraftHead) -> bool:
    """Whether the kernels can compute with a head whose linear layers have been quantised."""
    shape = head.shape
    try:
        check_sizes(shape.hidden, shape.head_size, shape.intermediate)
    except KernelError:
        return False
    return all(isinstance(layer, QuantizedLinear) for layer in _linear_layers(head))


def _linear_layers(head: DraftHead) -> list[Any]:
    return [head.fuse, head.again, head.token, head.qkv, head.out, head.gate_up, head.down]


def _weights(
    head: DraftHead, scores: PackedMatrix, embedding: PackedMatrix, positions: int, window: int
) -> HeadWeights:
    """The head's weights as the kernels take them, in the memory that they are in."""
    shape = head.shape
    fuse, again, token, qkv, out, gate_up, down = (layer.matrix for layer in _linear_layers(head))
    queries, keys = shape.heads * shape.head_size, shape.key_heads * shape.head_size
    layer = LayerWeights(
        query=qkv.part(0, queries),
        key=qkv.part(queries, keys),
        value=qkv.part(queries + keys, keys),
        output=out,
        gate=gate_up.part(0, shape.intermediate),
        up=gate_up.part(shape.intermediate, shape.intermediate),
        down=down,
        attention_norm=_plain(head.read_norm.weight),
        mlp_norm=_plain(head.mlp_norm.weight),
        window=window,
    )
    described = DecoderShape(
        hidden=shape.hidden,
        heads=shape.heads,
        key_heads=shape.key_heads,
        head_size=shape.head_size,
        intermediate=shape.intermediate,
        vocabulary=scores.rows,
        epsilon=shape.epsilon,
        activation="silu",
        attention_scale=shape.head_size**-0.5,
    )
    pairs = shape.head_size // 2
    cosines, sines = (_plain(part[0, 0, :, :pairs]) for part in head.rotation(torch.arange(positions)[None]))
    whole = DecoderWeights(described, [layer], embedding, scores, _plain(head.score_norm.weight), [(cosines, sines)])
    return HeadWeights(whole, fuse, again, token, len(shape.taps))


def _plain(values: Tensor) -> NDArray[np.float32]:
    return np.ascontiguousarray(values.detach().float().numpy())
