"""Draft steps of a head in fixed shapes, each draft as two CUDA graphs: reading what is new, and drafting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from specchat.engine.backends.graph_pool import GraphPool
from specchat.engine.backends.region import Numbers, Region, Regions
from specchat.engine.decoding.tree import Tree, chain
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.drafters.growing.scores import Scores
from specchat.engine.drafters.head.memory import HeadMemory
from specchat.engine.drafters.head.placed_layer import PlacedLayer
from specchat.engine.drafters.head.steps import DraftSteps, levels_of
from specchat.engine.sampling.sampling_rows import NUMBERS, SamplingFlags, SamplingRows, coarse_flags, setting_numbers
from specchat.engine.sequence.sequence import SequenceState

_MOST = 512
"""Shapes that are kept."""
_WIDTHS = (5, 17, 68)
"""Places that are read, padded, where the layer's window is larger."""
_CHAINS = (2, 4, 8)
"""Lengths of chains, padded, where the layer drafts longer ones."""

Drafted = tuple[Tensor, Tensor | None]


@dataclass(frozen=True, slots=True)
class _Shape:
    rows: int
    tree: Tree
    branches: bool
    flags: SamplingFlags


class StaticSteps:
    """The draft steps of a head on a GPU.

    Args:
        steps: the head's.
        memory: which places of every slot have been read.
        layer: the head.
        pool: makes the graphs.
        slots: of the cache.
    """

    def __init__(self, steps: DraftSteps, memory: HeadMemory, layer: PlacedLayer, pool: GraphPool, slots: int) -> None:
        self._steps = steps
        self._memory = memory
        self._layer = layer
        self._widths = (*(width for width in _WIDTHS if width < layer.window), layer.window)
        self._chains = (*(length for length in _CHAINS if length < layer.deepest), layer.deepest)
        self._regions = Regions(pool, slots, _MOST)

    @property
    def bytes(self) -> int:
        """Memory of what graphs share."""
        return self._regions.bytes

    @torch.inference_mode()
    def capture(self, trees: Sequence[Tree]) -> None:
        """Capture reading, and drafting of these trees and of chains, for all numbers of rows."""
        drafts = [(tree, True) for tree in trees] + [(chain(steps), False) for steps in reversed(self._chains)]
        for rows in reversed(self._regions.counts):
            for width in reversed(self._widths):
                state = self._read(rows, width).results[0]
            for (tree, branches), flags in product(drafts, coarse_flags(rows)):
                self._region(_Shape(rows, tree, branches, flags), state)

    def tree(self, rows: Sequence[SequenceState], tree: Tree, u: NDArray[np.float64]) -> Drafted:
        """As `DraftSteps.tree`, for rows and uniforms [B, K] on the host."""
        return self._draft(rows, tree, u, branches=True)

    def chain(self, rows: Sequence[SequenceState], steps: int, u: NDArray[np.float64]) -> Drafted:
        """As `DraftSteps.chain`."""
        padded = next(length for length in self._chains if length >= steps)
        tokens, q = self._draft(rows, chain(padded), u, branches=False)
        return tokens[:, :steps], None if q is None else q[:, :steps]

    def _draft(self, rows: Sequence[SequenceState], tree: Tree, u: NDArray[np.float64], *, branches: bool) -> Drafted:
        sampling, count = [row.request.sampling for row in rows], self._regions.count(len(rows))
        slots, ends = [row.slot for row in rows], [len(row.tokens) - 1 for row in rows]
        unread = max(end - begin for begin, end in zip(self._memory.take_unread(rows), ends, strict=True))
        ends += [0] * (count - len(rows))
        width = next(width for width in self._widths if width >= unread)
        tokens = np.zeros((len(rows), width), dtype=np.int64)
        for row, place in zip(rows, tokens, strict=True):
            last = row.tokens[-width:]
            place[width - len(last) :] = last
        (state,) = self._read(count, width)({"slots": slots, "ends": ends, "tokens": tokens}, {})
        draft = self._region(_Shape(count, tree, branches, SamplingFlags.of(sampling).strict.coarse(count)), state)
        numbers: dict[str, ArrayLike] = {"slots": slots, "ends": ends, "settings": setting_numbers(sampling), "u": u}
        drafted, *q = draft(numbers, {"state": state})
        return drafted[: len(rows)], q[0][: len(rows)] if q else None

    def _read(self, rows: int, width: int) -> Region:
        return self._regions.of(("read", rows, width), lambda: self._reading(rows, width))

    def _region(self, shape: _Shape, like: Tensor) -> Region:
        return self._regions.of(shape, lambda: self._drafting(shape, like))

    def _reading(self, rows: int, width: int) -> Region:
        numbers = Numbers(self._regions.pool.device, {"slots": (rows,), "ends": (rows,), "tokens": (rows, width)})

        def run() -> list[Tensor]:
            slots, ends, tokens = numbers["slots"], numbers["ends"], numbers["tokens"]
            return [self._layer.read_places(slots, ends, tokens)]

        return self._regions.region(numbers, {}, run)

    def _drafting(self, shape: _Shape, like: Tensor) -> Region:
        device, tree = self._regions.pool.device, shape.tree
        numbers = Numbers(
            device,
            {"slots": (shape.rows,), "ends": (shape.rows,)},
            {"settings": (shape.rows, NUMBERS), "u": (shape.rows, len(tree))},
        )
        inputs = {"state": like.new_zeros(shape.rows, 1, like.shape[-1])}
        # Held here: what graphs read must stay where it is.
        tree_mask, levels = TreeMask.fresh((tree,), len(tree) + 1, device), levels_of(tree, device)

        def run() -> list[Tensor]:
            settings, outcome = SamplingRows.from_numbers(numbers["settings"], shape.flags), inputs["state"]

            def extend(depth: int, tokens: Tensor) -> Scores:
                nonlocal outcome
                level, last = levels[depth], tree.levels[depth][-1]
                before, slots, ends = outcome[:, level.sources], numbers["slots"], numbers["ends"]
                outcome = self._layer.extend_places(slots, ends, tree_mask, level.tokens, last, before, tokens)
                return self._layer.score_places(outcome, depth)

            scores = self._layer.score_places(outcome, 0)
            if shape.branches:
                drafted = self._steps.tree(tree, levels, scores, extend, settings, numbers["u"])
            else:
                drafted = self._steps.chain(len(tree), scores, extend, settings, numbers["u"])
            return [part for part in drafted if part is not None]

        return self._regions.region(numbers, inputs, run)
