"""Batch-invariant forward passes of fixed shape: one row, `WIDTH` tokens, an extent given by the position.

A kernel's rounding depends on the shape of its operands, so a pass over one token and a pass over five need not agree
in the last bit. Here every pass of the target has the shape [1, `WIDTH`], padded, and attends over a number of columns
that depends on the position of its tokens alone. The remaining assumption, that a row of a matrix product does not
depend on its place in the matrix, is measured by `engine.backends.batch_invariance_check`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from specchat.engine.backends.captured_passes import Scores, Step
from specchat.engine.cache.kv_cache import KVCache
from specchat.engine.cache.static_view import StaticView
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.device.graphs import Graphs, Inputs, Signature

WIDTH = 8
"""Tokens per pass. Longer drafts take several passes, shorter ones are padded."""
_FEWEST_COLUMNS = 256


def extent(position: int, columns: int) -> int:
    """Columns S that a token at `position` attends over: a power of two that holds it, at most `columns`."""
    return min(max(_FEWEST_COLUMNS, 1 << position.bit_length()), columns)


def pieces(start: int, length: int, columns: int) -> Iterator[tuple[int, int]]:
    """Split `length` tokens from position `start` into passes [begin, end) of one extent and at most `WIDTH` tokens."""
    begin = 0
    while begin < length:
        own = extent(start + begin, columns)
        end = min(begin + WIDTH, length, max(own - start, begin + 1))
        yield begin, end
        begin = end


class SlotView(StaticView):
    """View of one slot of the KV cache, written at positions held on the device.

    Args:
        cache: the KV cache.
        slot: the slot to view.
        columns: S, columns attended over.
        positions: [1, T], columns that the pass writes; they may lie beyond S.
    """

    def __init__(self, cache: KVCache, slot: int, columns: int, positions: Tensor) -> None:
        super().__init__(cache, torch.full((1,), slot, device=positions.device), columns, positions)
        self._slot = slot

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write keys and values [1, G, T, D] of one layer; return the slot's first S columns."""
        keys, values = self.cache.keys[layer_idx][self._slot], self.cache.values[layer_idx][self._slot]
        keys[:, self._positions[0]] = key[0]
        values[:, self._positions[0]] = value[0]
        return keys[None, :, : self.length], values[None, :, : self.length]


class BatchInvariantPasses:
    """Passes of one shape [1, `WIDTH`]; rows run one after the other.

    Args:
        cache: the KV cache.
        step: runs the model.
        graphs: captures the passes on a GPU.
    """

    def __init__(self, cache: KVCache, step: Step, graphs: Graphs) -> None:
        self._cache = cache
        self._step = step
        self._graphs = graphs

    def forward(
        self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int], tree_mask: TreeMask | None = None
    ) -> Scores:
        """Scores of chains [B, T]; trees are not supported: what a token attends to would depend on its branch."""
        assert tree_mask is None
        rows = []
        for row, slot, start in zip(tokens, slots, starts, strict=True):
            cuts = pieces(start, len(row), self._cache.columns)
            rows.append(_joined([self._pass(row[i:j], slot, start + i) for i, j in cuts], dim=1))
        return _joined(rows, dim=0)

    @torch.inference_mode()
    def capture(self) -> None:
        """Capture the passes of every extent."""
        for columns in sorted({extent(i, self._cache.columns) for i in range(self._cache.columns)}, reverse=True):
            self._graphs.capture(columns, partial(self._run, columns=columns), _signature)

    def _pass(self, tokens: Tensor, slot: int, start: int) -> Scores:
        """Scores [1, n, …] of n ≤ `WIDTH` tokens of one extent."""
        columns, count = extent(start, self._cache.columns), len(tokens)
        padded = torch.nn.functional.pad(tokens, (0, WIDTH - count))[None]
        logits, *tapped = self._graphs.call(
            columns,
            lambda inputs: self._run(inputs, columns, None if self._graphs.enabled else slot),
            _signature,
            {"slot": [slot], "start": [start]},
            {"tokens": padded},
        )
        # Copies: the next pass may overwrite these scores.
        return logits[:, :count].clone(), tapped[0][:, :count].clone() if tapped else None

    def _run(self, inputs: Inputs, columns: int, slot: int | None = None) -> Sequence[Tensor]:
        """The pass over a slot; read in place if its number is known on the host."""
        positions = inputs["start"][:, None] + torch.arange(WIDTH, device=inputs["start"].device)
        view = (
            StaticView(self._cache, inputs["slot"], columns, positions)
            if slot is None
            else SlotView(self._cache, slot, columns, positions)
        )
        logits, tapped = self._step(inputs["tokens"], positions, view, None)
        return [logits] if tapped is None else [logits, tapped]


def _signature() -> Signature:
    return Signature(dict.fromkeys(("slot", "start"), (1,)), tensors={"tokens": ((1, WIDTH), torch.long)})


def _joined(parts: Sequence[Scores], dim: int) -> Scores:
    """Concatenate the scores of several passes."""
    tapped = [part for _, part in parts if part is not None]
    return torch.cat([logits for logits, _ in parts], dim), torch.cat(tapped, dim) if tapped else None
