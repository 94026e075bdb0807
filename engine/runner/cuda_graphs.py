"""CUDA graphs: forward passes of fixed shape, one graph per bucket of rows, tokens and columns.

Launching a small model's kernels one by one costs more than running them. A bucket is captured when it is first
needed and replayed from then on; one that cannot be captured runs eagerly each time. Rows that are not in the batch are
padding: they feed token 0 and write to a column reserved for that, so their own columns stay untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specchat.engine.errors import first_line
from specchat.engine.runner.kv_cache import KVCache
from specchat.engine.runner.padding import captured_width
from specchat.engine.runner.to_device import to_device
from specchat.engine.runner.tree import chain
from specchat.engine.runner.tree_mask import TreeMask

_FEWEST_COLUMNS = 256

Scores = tuple[Tensor, Tensor | None]
"""Logits [B, T, V], and the tapped hidden states [B, T, taps x hidden size]."""

Step = Callable[[Tensor, Tensor, "StaticView", TreeMask | None], Scores]
"""Scores of tokens [B, T] at columns [B, T] through a view of the cache; the tokens are chains without a tree mask."""


class LayerView:
    """View of the first rows and columns of one layer's cache, written at positions held on the device.

    Args:
        keys, values: [slots, G, columns, D], the layer's whole cache.
        rows: B, slots that take part.
        length: S, columns attended over.
        index: [B, 1], the slots.
        positions: [B, T], columns that the pass writes; they may lie beyond S.
    """

    is_compileable = False

    def __init__(self, keys: Tensor, values: Tensor, rows: int, length: int, index: Tensor, positions: Tensor) -> None:
        self._keys = keys
        self._values = values
        self._rows = rows
        self._length = length
        self._index = index
        self._positions = positions

    def update(self, key: Tensor, value: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write keys and values [B, G, T, D]; return the first B rows and S columns."""
        self._keys[self._index, :, self._positions] = key.transpose(1, 2)
        self._values[self._index, :, self._positions] = value.transpose(1, 2)
        return self._keys[: self._rows, :, : self._length], self._values[: self._rows, :, : self._length]

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Tokens before this pass; transformers asks only without position_ids, which are always given."""
        return self._length - self._positions.shape[1]


class StaticView:
    """View of the first rows and columns of the KV cache, passed to transformers as `past_key_values`.

    Args:
        cache: the KV cache.
        rows: B, slots that take part.
        columns: S, columns attended over.
        positions: [B, T], columns that the pass writes.
        compiled: whether layers run compiled (`engine.runner.compile`).
    """

    is_compileable = False

    def __init__(self, cache: KVCache, rows: int, columns: int, positions: Tensor, *, compiled: bool = False) -> None:
        self._cache = cache
        self._rows = rows
        self.length = columns
        self.compiled = compiled
        self._positions = positions
        self._index = torch.arange(rows, device=positions.device)[:, None]

    def layer(self, layer_idx: int) -> LayerView:
        """View of one layer."""
        keys, values = self._cache.keys[layer_idx], self._cache.values[layer_idx]
        return LayerView(keys, values, self._rows, self.length, self._index, self._positions)

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """As `LayerView.update`, for layer `layer_idx`."""
        return self.layer(layer_idx).update(key, value)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """As `LayerView.get_seq_length`."""
        return self.layer(layer_idx).get_seq_length()


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Static input tensors of one shape, and the pass over them."""

    tokens: Tensor
    positions: Tensor
    tree_mask: TreeMask | None
    run: Callable[[], Scores]


class GraphRunner:
    """Forward passes of one model over its KV cache, padded to buckets.

    Args:
        cache: the KV cache; its last column is written by padding rows.
        step: runs the model.
        capture: whether buckets become CUDA graphs; if not, they run eagerly (to test the shapes without a GPU).
        compiled: whether layers run compiled (`engine.runner.compile`).
    """

    def __init__(self, cache: KVCache, step: Step, *, capture: bool, compiled: bool = False) -> None:
        self._cache = cache
        self._step = step
        self._capture = capture
        self._compiled = compiled
        self.not_compiled: str | None = None
        """Why layers do not run compiled although asked for; None if they do."""
        self.not_captured: str | None = None
        """Why some bucket is no CUDA graph although asked for; None if all are."""
        self._device = cache.keys[0].device
        self._buckets: dict[tuple[int, int, int, bool], _Bucket] = {}
        self._pool = torch.cuda.graph_pool_handle() if capture else None

    def forward(
        self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int], tree_mask: TreeMask | None = None
    ) -> Scores:
        """As `ModelRunner.forward_tapped`."""
        length = tokens.shape[1]
        padded = captured_width(length)
        rows = min(_power_of_two(max(slots) + 1), self._cache.slots)
        # Never all columns: a view of a whole tensor would make the compiler compile again.
        columns = min(max(_FEWEST_COLUMNS, _power_of_two(max(starts) + padded)), self._cache.columns - 1)
        bucket = self._bucket(rows, padded, columns, tree_mask is not None)

        # One copy to the device: each slot's row in the batch and its start (-1: padding).
        host = torch.full((2, rows), -1)
        host[0, list(slots)] = torch.arange(len(slots))
        host[1, list(slots)] = torch.tensor(starts)
        index, start = to_device(host, self._device)
        riding = (index < 0)[:, None]
        bucket.tokens.zero_()
        bucket.tokens[:, :length] = torch.where(riding, 0, tokens[index.clamp(min=0)])
        positions = start[:, None] + torch.arange(padded, device=self._device)
        bucket.positions.copy_(torch.where(riding, self._cache.columns - 1, positions))
        if tree_mask is not None and bucket.tree_mask is not None:  # padding may attend to anything
            mine, width = index.clamp(min=0), tree_mask.depths.shape[1]
            bucket.tree_mask.depths[:, :width] = tree_mask.depths[mine]
            bucket.tree_mask.inside[:, :width, :width] = tree_mask.inside[mine]
        logits, tapped = bucket.run()
        if list(slots) != list(range(rows)):
            mine = to_device(slots, self._device)
            logits, tapped = logits[mine], None if tapped is None else tapped[mine]
        return logits[:, :length], None if tapped is None else tapped[:, :length]

    def _bucket(self, rows: int, length: int, columns: int, branches: bool) -> _Bucket:
        key = (rows, length, columns, branches)
        if key not in self._buckets:
            tokens = torch.zeros(rows, length, dtype=torch.long, device=self._device)
            positions = torch.full_like(tokens, self._cache.columns - 1)
            view = StaticView(self._cache, rows, columns, positions, compiled=self._compiled)
            # Written to by each pass, so not from `TreeMask.of`, whose tensors are shared.
            tree_mask = TreeMask.fresh([chain(length - 1)] * rows, length, self._device) if branches else None

            def run() -> Scores:
                return self._step(tokens, positions, view, tree_mask)

            if self._compiled:
                self._compile(run, view)
            self._buckets[key] = _Bucket(tokens, positions, tree_mask, self._as_graph(run))
        return self._buckets[key]

    def _compile(self, run: Callable[[], Scores], view: StaticView) -> None:
        """Run once, so that new shapes are compiled; if that fails, run without compilation from then on."""
        try:
            run()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a compiler fails in many ways: none installed, or code that it does not know
            self._compiled = view.compiled = False
            self.not_compiled = first_line(error)

    def _as_graph(self, run: Callable[[], Scores]) -> Callable[[], Scores]:
        """`run` as a CUDA graph; as it is where it cannot be captured, in the same shape.

        Only what capturing itself raises counts as that. What the pass raises is for the caller, and so is a shortage
        of memory: the next try may find some.
        """
        if not self._capture:
            return run
        self._warm(run)
        try:
            return self._captured(run)
        except RuntimeError as error:
            if _is_shortage(error):
                raise torch.OutOfMemoryError(first_line(error)) from error
            self.not_captured = first_line(error)
            return run

    def _warm(self, run: Callable[[], Scores]) -> None:
        """The first calls, outside of a graph, let libraries set themselves up."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                run()
        torch.cuda.current_stream().wait_stream(stream)

    def _captured(self, run: Callable[[], Scores]) -> Callable[[], Scores]:
        """`run` as a CUDA graph."""
        graph = torch.cuda.CUDAGraph()
        # thread_local: other threads may allocate during the capture.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            scores = run()

        def replay() -> Scores:
            graph.replay()
            return scores

        return replay


def _is_shortage(error: RuntimeError) -> bool:
    """Whether memory was lacking: CUDA's libraries say so in errors of their own."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in text or "alloc_failed" in text


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
