"""Draft steps of a head on a GPU as captured graphs: reading new places, and drafting a whole tree or chain."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from specchat.engine.decoding.tree import Tree, chain
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.device.graphs import Function, Graphs, Inputs, Signature
from specchat.engine.drafters.growing.scores import Scores
from specchat.engine.drafters.head.memory import HeadMemory
from specchat.engine.drafters.head.placed_layer import PlacedLayer
from specchat.engine.drafters.head.steps import DraftSteps, levels_of
from specchat.engine.sampling.sampling_rows import NUMBERS, SamplingFlags, SamplingRows, coarse_flags, setting_numbers
from specchat.engine.sequence.sequence import SequenceState

MOST_SHAPES = 512
"""Captured shapes that are kept."""
_WIDTHS = (5, 17, 68)
"""Numbers of places that are read, padded, where the layer's window is larger."""
_CHAINS = (2, 4, 8)
"""Lengths of chains, padded, where the layer drafts longer ones."""

Drafted = tuple[Tensor, Tensor | None]
Captured = tuple[Hashable, Function, Callable[[], Signature]]
"""Key, function and signature of a captured function."""


@dataclass(frozen=True, slots=True)
class _Shape:
    rows: int
    tree: Tree
    branches: bool
    flags: SamplingFlags


class CapturedSteps:
    """The draft steps of a head on a GPU.

    Args:
        steps: the head's.
        memory: which places of every slot have been read.
        layer: the head.
        graphs: captures them.
    """

    def __init__(self, steps: DraftSteps, memory: HeadMemory, layer: PlacedLayer, graphs: Graphs) -> None:
        self._steps = steps
        self._memory = memory
        self._layer = layer
        self._widths = (*(width for width in _WIDTHS if width < layer.window), layer.window)
        self._chains = (*(length for length in _CHAINS if length < layer.deepest), layer.deepest)
        self._graphs = graphs

    @property
    def bytes(self) -> int:
        """Memory that the graphs share."""
        return self._graphs.bytes

    @torch.inference_mode()
    def capture(self, trees: Sequence[Tree]) -> None:
        """Capture reading, and drafting of these trees and of chains, for all numbers of rows."""
        drafts = [(tree, True) for tree in trees] + [(chain(steps), False) for steps in reversed(self._chains)]
        for rows in reversed(self._graphs.counts):
            for width in reversed(self._widths):
                state = self._graphs.capture(*self._reading(rows, width)).results[0]
            for (tree, branches), flags in product(drafts, coarse_flags(rows)):
                self._graphs.capture(*self._drafting(_Shape(rows, tree, branches, flags), state))

    def tree(self, rows: Sequence[SequenceState], tree: Tree, u: NDArray[np.float64]) -> Drafted:
        """As `DraftSteps.tree`, for rows and uniforms [B, K] on the host."""
        return self._draft(rows, tree, u, branches=True)

    def chain(self, rows: Sequence[SequenceState], steps: int, u: NDArray[np.float64]) -> Drafted:
        """As `DraftSteps.chain`."""
        padded = next(length for length in self._chains if length >= steps)
        tokens, q = self._draft(rows, chain(padded), u, branches=False)
        return tokens[:, :steps], None if q is None else q[:, :steps]

    def _draft(self, rows: Sequence[SequenceState], tree: Tree, u: NDArray[np.float64], *, branches: bool) -> Drafted:
        sampling, count = [row.request.sampling for row in rows], self._graphs.count(len(rows))
        slots, ends = [row.slot for row in rows], [len(row.tokens) - 1 for row in rows]
        unread = max(end - begin for begin, end in zip(self._memory.take_unread(rows), ends, strict=True))
        ends += [0] * (count - len(rows))
        width = next(width for width in self._widths if width >= unread)
        tokens = np.zeros((len(rows), width), dtype=np.int64)
        for row, place in zip(rows, tokens, strict=True):
            last = row.tokens[-width:]
            place[width - len(last) :] = last
        reading: dict[str, ArrayLike] = {"slots": slots, "ends": ends, "tokens": tokens}
        (state,) = self._graphs.call(*self._reading(count, width), reading)
        shape = _Shape(count, tree, branches, SamplingFlags.of(sampling).strict.coarse(count))
        numbers: dict[str, ArrayLike] = {"slots": slots, "ends": ends, "settings": setting_numbers(sampling), "u": u}
        drafted, *q = self._graphs.call(*self._drafting(shape, state), numbers, {"state": state})
        return drafted[: len(rows)], q[0][: len(rows)] if q else None

    def _reading(self, rows: int, width: int) -> Captured:
        """Reading of new places."""

        def run(inputs: Inputs) -> list[Tensor]:
            return [self._layer.read_places(inputs["slots"], inputs["ends"], inputs["tokens"])]

        def signature() -> Signature:
            return Signature({"slots": (rows,), "ends": (rows,), "tokens": (rows, width)})

        return ("read", rows, width), run, signature

    def _drafting(self, shape: _Shape, state: Tensor) -> Captured:
        """Drafting of one shape."""
        tree, device = shape.tree, self._graphs.device
        # Kept by the function: what graphs read must stay where it is.
        tree_mask, levels = TreeMask.of((tree,), len(tree) + 1, device), levels_of(tree, device)

        def run(inputs: Inputs) -> list[Tensor]:
            settings, outcome = SamplingRows.from_numbers(inputs["settings"], shape.flags), inputs["state"]

            def extend(depth: int, tokens: Tensor) -> Scores:
                nonlocal outcome
                level, last = levels[depth], tree.levels[depth][-1]
                before, slots, ends = outcome[:, level.sources], inputs["slots"], inputs["ends"]
                outcome = self._layer.extend_places(slots, ends, tree_mask, level.tokens, last, before, tokens)
                return self._layer.score_places(outcome, depth)

            scores = self._layer.score_places(outcome, 0)
            if shape.branches:
                drafted = self._steps.tree(tree, levels, scores, extend, settings, inputs["u"])
            else:
                drafted = self._steps.chain(len(tree), scores, extend, settings, inputs["u"])
            return [part for part in drafted if part is not None]

        def signature() -> Signature:
            rows = shape.rows
            size = (rows, 1, state.shape[-1])
            return Signature(
                {"slots": (rows,), "ends": (rows,)},
                {"settings": (rows, NUMBERS), "u": (rows, len(tree))},
                {"state": (size, state.dtype)},
            )

        return shape, run, signature
