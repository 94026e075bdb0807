"""Draft steps of a head, captured as CUDA graphs where the target's passes are: reading, and drafting a tree."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from specchat.engine.decoding.draft import Support
from specchat.engine.decoding.tree import Tree, chain
from specchat.engine.device.graphs import FIRST, LATER, Graphs, Inputs, Signature, Step
from specchat.engine.drafters.head.layer import HeadLayer, Rows, levels_of
from specchat.engine.request import DEFAULT_GAMMA
from specchat.engine.sampling import xtc
from specchat.engine.sampling.rng import Stream, uniforms
from specchat.engine.sampling.sampler import (
    NUMBERS,
    SamplingFlags,
    SamplingRows,
    coarse_flags,
    draw_different,
    setting_numbers,
    standardise,
)
from specchat.engine.sequence.sequence import SequenceState

MOST_SHAPES = 512
"""Captured shapes that are kept."""
_WIDTHS = (5, 17, 68)
"""Numbers of places that are read, padded, where shapes are static and the layer may read more."""
_CHAINS = (2, 4, 8)
"""Lengths of chains, padded, where shapes are static and the layer drafts longer ones."""
_READ_AT_ONCE = 17
"""Places that rows read in one pass; who has more to read does it alone first."""


class HeadSteps:
    """The draft steps of a head for any number of rows, all on the device.

    Args:
        layer: the head.
        support: the V' tokens that it can draft.
        graphs: captures the steps, or calls them.
    """

    def __init__(self, layer: HeadLayer, support: Support, graphs: Graphs) -> None:
        self._layer, self._support, self._graphs = layer, support, graphs
        self._columns = layer.states.shape[1]
        self._widths = (*(width for width in _WIDTHS if width < layer.most_unread), layer.most_unread)
        self._chains = (*(length for length in _CHAINS if length < layer.deepest), layer.deepest)

    def plan(self, trees: Sequence[Tree]) -> None:
        """Plan to capture reading, and drafting of these trees and of chains, for all numbers of rows."""
        drafts = [*trees, *map(chain, reversed(self._chains))]
        state = self._graphs.capture(*self._reading(1, self._widths[0], self._columns))[0]
        for rows in reversed(self._graphs.counts):
            first = FIRST if rows == 1 else LATER + rows
            for width in reversed(self._widths):
                self._graphs.plan(first, *self._reading(rows, width, self._columns))
            for tree, flags in product(drafts, coarse_flags(rows)):
                rank = first if tree.depth == DEFAULT_GAMMA else LATER + rows
                self._graphs.plan(rank, *self._drafting((rows, tree, flags), state, self._columns))

    @torch.inference_mode()
    def draft(
        self, rows: Sequence[SequenceState], begins: Sequence[int], tree: Tree, *, branches: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Draft the same tree for all rows: read what is new, then take a draft step for each level of the tree.

        Args:
            rows: B; where there are branches, all of them draw tokens or none does.
            begins: [B], the first place that the head has to read of each.
            tree: of K tokens.
            branches: whether the tree may have some; else it is a chain.

        Returns:
            Tokens [B, K] and, if a row draws them, the distributions that they were drawn from [B, inner, V'].
        """
        graphs = self._graphs
        state = self.read(rows, begins)
        count, sampling = graphs.count(len(rows)), [row.drafting for row in rows]
        flags = SamplingFlags.of(sampling).strict
        padded = tree
        if graphs.enabled:
            flags = flags.coarse(count)
            if not branches:
                padded = chain(next(length for length in self._chains if length >= len(tree)))
        slots, ends, longest = self._rows(rows)
        u = uniforms([row.seed for row in rows], [row.rounds for row in rows], Stream.DRAFT, len(tree))
        numbers: dict[str, ArrayLike] = {"slots": slots, "ends": ends, "settings": setting_numbers(sampling), "u": u}
        if flags.any_xtc:
            numbers["xtc"] = xtc.thresholds(rows, [range(padded.depth)] * len(rows), padded.depth)
        step = self._drafting((count, padded, flags), state, longest)
        tokens, *q = graphs.call(*step, numbers, {"state": state})
        return tokens[: len(rows), : len(tree)], q[0][: len(rows), : tree.inner] if q else None

    def read(self, rows: Sequence[SequenceState], begins: Sequence[int]) -> Tensor:
        """Read the places from `begins` [B] on; returns the layer's outputs for the first draft step."""
        unread = [len(row.tokens) - 1 - begin for row, begin in zip(rows, begins, strict=True)]
        if len(rows) > 1:
            for i, row in enumerate(rows):
                if unread[i] > _READ_AT_ONCE:
                    self._read([row], unread[i])
                    unread[i] = 1
        return self._read(rows, max(1, *unread))

    def _read(self, rows: Sequence[SequenceState], places: int) -> Tensor:
        """Read the last `places` places of each row, or all that it has: reading one again gives the same."""
        graphs = self._graphs
        if graphs.enabled:
            width = next(width for width in self._widths if width >= places)
        else:
            width = self._layer.width(places)
        tokens = np.zeros((len(rows), width), dtype=np.int64)
        for row, place in zip(rows, tokens, strict=True):
            last = row.tokens[-width:]
            place[width - len(last) :] = last
        slots, ends, longest = self._rows(rows)
        step = self._reading(graphs.count(len(rows)), width, longest)
        return graphs.call(*step, {"slots": slots, "ends": ends, "tokens": tokens})[0]

    def _rows(self, rows: Sequence[SequenceState]) -> tuple[list[int], list[int], int]:
        """Slots and ends of rows, padded, and what no end is larger than."""
        slots, ends = [row.slot for row in rows], [len(row.tokens) - 1 for row in rows]
        longest = self._columns if self._graphs.enabled else max(ends)
        return slots, ends + [0] * (self._graphs.count(len(rows)) - len(rows)), longest

    def _reading(self, rows: int, width: int, longest: int) -> Step:
        """Reading of new places."""

        def run(inputs: Inputs) -> list[Tensor]:
            return [self._layer.read(Rows(inputs["slots"], inputs["ends"], longest), inputs["tokens"])]

        def signature() -> Signature:
            return Signature({"slots": (rows,), "ends": (rows,), "tokens": (rows, width)})

        return ("read", rows, width), run, signature

    def _drafting(self, shape: tuple[int, Tree, SamplingFlags], state: Tensor, longest: int) -> Step:
        """Drafting for a number of rows, with a tree and sampling flags."""
        rows, tree, flags = shape
        levels, vocabulary = levels_of(tree, self._graphs.device), self._support.tokens

        def run(inputs: Inputs) -> list[Tensor]:
            settings = SamplingRows.from_numbers(inputs["settings"], flags, inputs.get("xtc"))
            outcome, each_row = inputs["state"], torch.zeros(rows, 1, dtype=torch.long, device=vocabulary.device)
            drafting, u = Rows(inputs["slots"], inputs["ends"], longest), inputs["u"]
            tokens = torch.zeros(rows, len(tree), dtype=torch.long, device=vocabulary.device)
            q = None if flags.all_greedy else torch.zeros(rows, tree.inner, len(vocabulary), device=vocabulary.device)
            for depth, level in enumerate(levels):
                if depth:
                    drafted = tokens[:, level.tokens - 1]
                    outcome = self._layer.follow(drafting, level, outcome[:, level.sources], drafted)
                logits = self._layer.score(outcome, depth)
                if q is None:
                    places = logits.topk(level.draws.shape[1], -1).indices
                else:
                    q[:, level.tokens] = drawn_from = standardise(logits, settings.at(each_row + depth))
                    places = draw_different(drawn_from, u[:, level.draws])
                tokens[:, level.children - 1] = vocabulary[places.flatten(1)[:, level.offered]]
            return [tokens] if q is None else [tokens, q]

        def signature() -> Signature:
            size = (rows, 1, state.shape[-1])
            reals: dict[str, tuple[int, ...]] = {"settings": (rows, NUMBERS), "u": (rows, len(tree))}
            reals |= {"xtc": (rows, tree.depth)} if flags.any_xtc else {}
            return Signature({"slots": (rows,), "ends": (rows,)}, reals, {"state": (size, state.dtype)})

        return shape, run, signature
