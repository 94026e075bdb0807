"""Forward passes of fixed shape: one CUDA graph per bucket of rows, tokens and columns.

Launching a small model's kernels one by one costs more than running them. A bucket is captured when it is first
needed and replayed from then on. Rows that are not in the batch ride along: they feed token 0 at a column kept for
waste, so nothing of theirs is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.architecture import first_line
from engine.cache import SlotCache
from engine.forest import Forest
from engine.to_device import to_device
from engine.tree import chain
from engine.widths import captured_width

_FEWEST_COLUMNS = 256

Scores = tuple[Tensor, Tensor | None]
"""Logits [K, T, V], and the hidden states that are tapped."""

Step = Callable[[Tensor, Tensor, "StaticView", Forest | None], Scores]
"""The scores of tokens [K, T] in columns [K, T], through a view of the cache; chains if there is no forest."""


class LayerView:
    """One layer's first rows and columns of the cache, written at positions that only the device knows.

    Args:
        keys, values: [slots, heads, columns, size], all there are.
        rows: K, how many slots take part.
        length: S, how many columns are attended to.
        index: [K, 1], the slots.
        positions: [K, T], where the pass writes; beyond S it writes all the same.
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
        """Write keys and values [K, heads, T, size]; return the first K rows and S columns."""
        self._keys[self._index, :, self._positions] = key.transpose(1, 2)
        self._values[self._index, :, self._positions] = value.transpose(1, 2)
        return self._keys[: self._rows, :, : self._length], self._values[: self._rows, :, : self._length]

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Only asked for where positions are not given, and they always are."""
        return self._length - self._positions.shape[1]


class StaticView:
    """The first rows and columns of the cache, layer by layer.

    Args:
        cache: the slots.
        rows: K, how many slots take part.
        columns: S, how many columns are attended to.
        positions: [K, T], where the pass writes.
        compiled: whether layers that can run compiled are to (`engine.compiled_layers`).
    """

    is_compileable = False

    def __init__(self, cache: SlotCache, rows: int, columns: int, positions: Tensor, *, compiled: bool = False) -> None:
        self._cache = cache
        self._rows = rows
        self.length = columns
        self.compiled = compiled
        self._positions = positions
        self._index = torch.arange(rows, device=positions.device)[:, None]

    def layer(self, layer_idx: int) -> LayerView:
        """What one layer sees."""
        keys, values = self._cache.keys[layer_idx], self._cache.values[layer_idx]
        return LayerView(keys, values, self._rows, self.length, self._index, self._positions)

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """As `LayerView.update`, for the layer of that number."""
        return self.layer(layer_idx).update(key, value)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """As `LayerView.get_seq_length`."""
        return self.layer(layer_idx).get_seq_length()


@dataclass(frozen=True, slots=True)
class _Bucket:
    """The fixed inputs and outputs of one shape."""

    tokens: Tensor
    positions: Tensor
    forest: Forest | None
    run: Callable[[], Scores]


class StaticSteps:
    """Passes of one model over its slot cache, padded to buckets.

    Args:
        cache: the slots; its last column is given up to rows that ride along.
        step: runs the model.
        capture: whether a bucket becomes a CUDA graph; without, it is run each time (to test the shapes anywhere).
        compiled: whether layers run compiled (`engine.compiled_layers`).
    """

    def __init__(self, cache: SlotCache, step: Step, *, capture: bool, compiled: bool = False) -> None:
        self._cache = cache
        self._step = step
        self._capture = capture
        self._compiled = compiled
        self.not_compiled: str | None = None
        """Why layers that should be do not run compiled."""
        self._device = cache.keys[0].device
        self._buckets: dict[tuple[int, int, int, bool], _Bucket] = {}
        self._pool = torch.cuda.graph_pool_handle() if capture else None

    def forward(
        self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int], forest: Forest | None = None
    ) -> Scores:
        """As `CachedModel.forward_tapped`."""
        length = tokens.shape[1]
        padded = captured_width(length)
        rows = min(_power_of_two(max(slots) + 1), self._cache.slots)
        # Never all of them: what is compiled would be compiled anew for a view that is a whole tensor.
        columns = min(max(_FEWEST_COLUMNS, _power_of_two(max(starts) + padded)), self._cache.columns - 1)
        bucket = self._bucket(rows, padded, columns, forest is not None)

        # One copy to the device: which row of the batch each slot is, and where it starts (-1: it rides along).
        host = torch.full((2, rows), -1)
        host[0, list(slots)] = torch.arange(len(slots))
        host[1, list(slots)] = torch.tensor(starts)
        index, start = to_device(host, self._device)
        riding = (index < 0)[:, None]
        bucket.tokens.zero_()
        bucket.tokens[:, :length] = torch.where(riding, 0, tokens[index.clamp(min=0)])
        positions = start[:, None] + torch.arange(padded, device=self._device)
        bucket.positions.copy_(torch.where(riding, self._cache.columns - 1, positions))
        if forest is not None and bucket.forest is not None:  # what pads, or rides along, may see anything
            mine, width = index.clamp(min=0), forest.depths.shape[1]
            bucket.forest.depths[:, :width] = forest.depths[mine]
            bucket.forest.inside[:, :width, :width] = forest.inside[mine]
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
            # The bucket's own, to be written to: what `Forest.of` gives is shared.
            forest = Forest.fresh([chain(length - 1)] * rows, length, self._device) if branches else None

            def run() -> Scores:
                return self._step(tokens, positions, view, forest)

            if self._compiled:
                self._compile(run, view)
            self._buckets[key] = _Bucket(tokens, positions, forest, self._captured(run) if self._capture else run)
        return self._buckets[key]

    def _compile(self, run: Callable[[], Scores], view: StaticView) -> None:
        """Run once, which compiles what has not met such shapes before; where that fails, do without from now on."""
        try:
            run()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a compiler fails in many ways: none installed, or code that it does not know
            self._compiled = view.compiled = False
            self.not_compiled = first_line(error)

    def _captured(self, run: Callable[[], Scores]) -> Callable[[], Scores]:
        """`run` as a CUDA graph; the first calls, outside of it, let libraries set themselves up."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may allocate meanwhile: they are no part of the graph.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            scores = run()

        def replay() -> Scores:
            graph.replay()
            return scores

        return replay


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
