"""Graph runner: forward passes of fixed shape, a CUDA graph per bucket of rows, tokens and columns.

A pass is told the slot of each of its rows. Rows beyond the batch are padding: they feed token 0 and write to a column
reserved for that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specchat.engine.backends.graph_pool import GraphPool
from specchat.engine.backends.region import Numbers, Region, Regions
from specchat.engine.cache.kv_cache import KVCache
from specchat.engine.cache.static_view import StaticView
from specchat.engine.decoding.tree import chain
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.decoding.tree_part import TreePart
from specchat.engine.device.padding import CAPTURED, captured_width
from specchat.engine.errors import first_line

_FEWEST_COLUMNS = 256
_FAR = 1.25
"""How many times as many columns are worth a bucket of their own."""
_MOST = 256
"""Buckets there may be."""

Scores = tuple[Tensor, Tensor | None]
"""Logits [B, T, V], and the tapped hidden states [B, T, taps x hidden size]."""

Step = Callable[[Tensor, Tensor, StaticView, TreeMask | TreePart | None], Scores]
"""Scores of tokens [B, T] at columns [B, T] through a view of the cache; the tokens are chains without a tree mask."""


@dataclass(frozen=True, slots=True)
class Seats:
    """Places of a batch in a pass of more rows."""

    count: int
    """Rows of the pass."""
    mine: Sequence[int]
    """[B], which of them each row of the batch is."""
    slots: Sequence[int]
    """The slot of each row of the pass; further rows are padding."""

    @property
    def in_order(self) -> bool:
        """Whether the batch is the first rows."""
        return list(self.mine) == list(range(len(self.mine)))


class GraphRunner:
    """Forward passes of one model over its KV cache, padded to buckets.

    The scores of all buckets lie at one place: they are there until the next pass.

    Args:
        cache: the KV cache; its last column is written by padding rows.
        step: runs the model.
        pool: makes the graphs.
        compiled: whether layers run compiled (`engine.backends.compile`).
        trees: whether passes may be over trees; then all are, chains being trees that do not branch.
    """

    def __init__(
        self, cache: KVCache, step: Step, pool: GraphPool, *, compiled: bool = False, trees: bool = True
    ) -> None:
        self.cache = cache
        self.trees = trees
        self.step = step
        self.pool = pool
        self.not_compiled: str | None = None
        """Why layers do not run compiled although asked for; None if they do."""
        self._compiled = compiled
        self._buckets = Regions(pool, cache.slots, _MOST)
        self._columns = _sizes(cache.columns - 1, _MOST // (len(CAPTURED) * len(self.row_counts)))
        self._parts: list[tuple[int, torch.dtype]] = []
        """Size of the last dimension, and dtype, of logits and tapped hidden states."""

    @property
    def buckets(self) -> list[tuple[int, int, int]]:
        """Rows, tokens and columns of each bucket there is."""
        return self._buckets.keys  # type: ignore[return-value]

    @property
    def row_counts(self) -> list[int]:
        """Rows that passes may have."""
        return self._buckets.counts

    @property
    def column_counts(self) -> list[int]:
        """Columns that passes may have."""
        return self._columns

    @property
    def bytes(self) -> int:
        """Memory of scores."""
        return self._buckets.bytes

    def forward(
        self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int], tree_mask: TreeMask | None = None
    ) -> Scores:
        """As `ModelRunner.forward_tapped`."""
        length = tokens.shape[1]
        width, seats = captured_width(length), self.seats(slots)
        rows = seats.count
        bucket = self.bucket(rows, width, self.columns(max(starts) + width))
        index, start = [-1] * rows, [0] * rows
        for row, (seat, first) in enumerate(zip(seats.mine, starts, strict=True)):
            index[seat], start[seat] = row, first
        inputs = {"tokens": tokens}
        if "inside" in bucket.inputs:
            if tree_mask is None:
                tree_mask = TreeMask.of((chain(width - 1),) * len(slots), width, self.pool.device)
            inputs |= {"depths": tree_mask.depths, "inside": tree_mask.inside}
        numbers = {"index": index, "start": start, "slots": seats.slots, "mine": seats.mine}
        logits, *tapped = bucket(numbers, inputs)
        if seats.in_order:
            logits, *tapped = (part[: len(slots), :length] for part in (logits, *tapped))
        else:
            mine = bucket.numbers["mine"][: len(slots)]
            logits, *tapped = (part[mine, :length] for part in (logits, *tapped))
        return logits, tapped[0] if tapped else None

    def seats(self, slots: Sequence[int]) -> Seats:
        """Where the rows in these slots are in a pass: one after the other, but for a pass over all slots, which reads
        the cache where it lies."""
        count, every = self._buckets.count(len(slots)), range(self.cache.slots)
        whole = count == self.cache.slots
        return Seats(count, *((slots, every) if whole else (every[: len(slots)], slots)))

    def columns(self, end: int) -> int:
        """Columns of a pass that writes up to `end`."""
        return next((size for size in self._columns if size >= end), self._columns[-1])

    def view(self, slots: Tensor, columns: int, positions: Tensor) -> StaticView:
        """The first columns of slots [rows] of the cache, for a pass that writes `positions` [rows, T]."""
        return StaticView(self.cache, slots, columns, positions, compiled=self._compiled)

    def compile(self, run: Callable[[], object]) -> None:
        """Run once, so that new shapes are compiled; if that fails, run without compilation from then on."""
        if not self._compiled:
            return
        try:
            run()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a compiler fails in many ways: none installed, or code that it does not know
            self._compiled = False
            self.not_compiled = first_line(error)

    def bucket(self, rows: int, width: int, columns: int) -> Region:
        """The bucket of this shape, captured if it is not yet."""
        return self._buckets.of((rows, width, columns), lambda: self._bucket(rows, width, columns))

    @torch.inference_mode()
    def capture(self, widths: Collection[int]) -> None:
        """Capture all buckets of these widths, the largest first: the others then fit into its memory."""
        for columns in reversed(self._columns):
            for rows in reversed(self.row_counts):
                for width in sorted(widths, reverse=True):
                    self.bucket(rows, width, columns)

    def _bucket(self, rows: int, width: int, columns: int) -> Region:
        device = self.pool.device
        numbers = Numbers(device, dict.fromkeys(("index", "start", "slots", "mine"), (rows,)))
        numbers.send({"index": [-1] * rows, "slots": range(rows)})
        inputs = {"tokens": torch.zeros(rows, width, dtype=torch.long, device=device)}
        branches = self.trees and width > 1
        if branches:
            # Written to by each pass, so not from `TreeMask.of`, whose tensors are shared.
            blank = TreeMask.fresh([chain(width - 1)] * rows, width, device)
            inputs |= {"depths": blank.depths, "inside": blank.inside}

        def run() -> list[Tensor]:
            index = numbers["index"]
            riding, row = (index >= 0)[:, None], index.clamp(min=0)
            positions = numbers["start"][:, None] + torch.arange(width, device=device)
            positions = torch.where(riding, positions, self.cache.columns - 1)
            tokens = torch.where(riding, inputs["tokens"][row], 0)
            tree_mask = None  # padding may attend to anything
            if branches:
                tree_mask = TreeMask(inputs["depths"][row], inputs["inside"][row], blank.children, (), ())
            logits, tapped = self.step(tokens, positions, self.view(numbers["slots"], columns, positions), tree_mask)
            return [logits, *([] if tapped is None else [tapped])]

        self.compile(run)
        self._parts = self._parts or [(part.shape[-1], part.dtype) for part in run()]
        most = self._buckets.rows * CAPTURED[-1]
        places = [
            self._buckets.shared(f"scores {i}", (rows, width, size), most * size, dtype)
            for i, (size, dtype) in enumerate(self._parts)
        ]
        return self._buckets.region(numbers, inputs, run, places)


def _sizes(columns: int, most: int) -> list[int]:
    """At most so many numbers of columns, from few to all but one, each a power of two times the one before.

    Never all: a view of a whole tensor would make the compiler compile again.
    """
    factor = 2
    while True:
        sizes = [min(_FEWEST_COLUMNS, columns)]
        while sizes[-1] < columns:
            sizes.append(min(sizes[-1] * factor, columns))
        if len(sizes) > 1 and sizes[-1] < _FAR * sizes[-2]:
            del sizes[-2]
        if len(sizes) <= max(most, 1) or len(sizes) <= 2:
            return sizes
        factor *= 2
