"""Graph runner: forward passes of fixed shape, a CUDA graph per bucket of rows, tokens and columns.

Rows that are not in the batch are padding: they feed token 0 and write to a column reserved for that, so their own
columns stay untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specchat.engine.errors import first_line
from specchat.engine.runner.graph_pool import GraphPool
from specchat.engine.runner.kv_cache import KVCache
from specchat.engine.runner.padding import CAPTURED, captured_width
from specchat.engine.runner.region import Numbers, Region, Regions, power_of_two
from specchat.engine.runner.static_view import StaticView
from specchat.engine.runner.tree import chain
from specchat.engine.runner.tree_mask import TreeMask

_FEWEST_COLUMNS = 256
_MOST = 256
"""Buckets that are kept."""

Scores = tuple[Tensor, Tensor | None]
"""Logits [B, T, V], and the tapped hidden states [B, T, taps x hidden size]."""

Step = Callable[[Tensor, Tensor, StaticView, TreeMask | None], Scores]
"""Scores of tokens [B, T] at columns [B, T] through a view of the cache; the tokens are chains without a tree mask."""


class GraphRunner:
    """Forward passes of one model over its KV cache, padded to buckets.

    The scores of all buckets lie at one place: they are there until the next pass.

    Args:
        cache: the KV cache; its last column is written by padding rows.
        step: runs the model.
        pool: makes the graphs.
        compiled: whether layers run compiled (`engine.runner.compile`).
    """

    def __init__(self, cache: KVCache, step: Step, pool: GraphPool, *, compiled: bool = False) -> None:
        self.cache = cache
        self.step = step
        self.pool = pool
        self.not_compiled: str | None = None
        """Why layers do not run compiled although asked for; None if they do."""
        self._compiled = compiled
        self._buckets = Regions(pool, cache.slots, _MOST)
        self._parts: list[tuple[int, torch.dtype]] = []
        """Size of the last dimension, and dtype, of logits and tapped hidden states."""

    @property
    def buckets(self) -> list[tuple[int, int, int, bool]]:
        """Rows, tokens, columns, and whether trees, of each bucket there is."""
        return self._buckets.keys  # type: ignore[return-value]

    @property
    def bytes(self) -> int:
        """Memory of scores."""
        return self._buckets.bytes

    def forward(
        self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int], tree_mask: TreeMask | None = None
    ) -> Scores:
        """As `ModelRunner.forward_tapped`."""
        length = tokens.shape[1]
        rows, width = self.rows(slots), captured_width(length)
        key = rows, width, self.columns(max(starts) + width), tree_mask is not None
        bucket = self._buckets.of(key, lambda: self._bucket(*key))
        index, start = [-1] * rows, [0] * rows
        for row, (slot, first) in enumerate(zip(slots, starts, strict=True)):
            index[slot], start[slot] = row, first
        inputs = {"tokens": tokens}
        if tree_mask is not None:
            inputs |= {"depths": tree_mask.depths, "inside": tree_mask.inside}
        logits, *tapped = bucket({"index": index, "start": start, "mine": slots}, inputs)
        if list(slots) == list(range(len(slots))):
            logits, *tapped = (part[: len(slots), :length] for part in (logits, *tapped))
        else:
            mine = bucket.numbers["mine"][: len(slots)]
            logits, *tapped = (part[mine, :length] for part in (logits, *tapped))
        return logits, tapped[0] if tapped else None

    def rows(self, slots: Sequence[int]) -> int:
        """Rows of a pass that these slots take part in: the first ones."""
        return min(power_of_two(max(slots) + 1), self.cache.slots)

    def columns(self, end: int) -> int:
        """Columns of a pass that writes up to `end`.

        Never all of them: a view of a whole tensor would make the compiler compile again.
        """
        return min(max(_FEWEST_COLUMNS, power_of_two(end)), self.cache.columns - 1)

    def view(self, rows: int, columns: int, positions: Tensor) -> StaticView:
        """The first rows and columns of the cache, for a pass that writes `positions` [rows, T]."""
        return StaticView(self.cache, rows, columns, positions, compiled=self._compiled)

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

    def _bucket(self, rows: int, width: int, columns: int, branches: bool) -> Region:
        device = self.pool.device
        numbers = Numbers(device, dict.fromkeys(("index", "start", "mine"), (rows,)))
        numbers.send({"index": [-1] * rows})
        inputs = {"tokens": torch.zeros(rows, width, dtype=torch.long, device=device)}
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
            logits, tapped = self.step(tokens, positions, self.view(rows, columns, positions), tree_mask)
            return [logits, *([] if tapped is None else [tapped])]

        self.compile(run)
        self._parts = self._parts or [(part.shape[-1], part.dtype) for part in run()]
        most = self._buckets.rows * CAPTURED[-1]
        places = [
            self._buckets.shared(f"scores {i}", (rows, width, size), most * size, dtype)
            for i, (size, dtype) in enumerate(self._parts)
        ]
        return self._buckets.region(numbers, inputs, run, places)
