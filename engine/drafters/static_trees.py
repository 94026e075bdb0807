"""Trees of a draft model in fixed shapes: reading what is new, and every further level, are a CUDA graph each.

Which tokens of a tree a level feeds, what they see and where their children go are numbers on the device, so that all
trees share the graphs. What was accepted of a tree is fed again with the next one: on a GPU a pass over a few tokens
costs what a pass over one does, and the host need not know the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from specchat.engine.backends.cuda_graphs import GraphRunner
from specchat.engine.backends.region import Numbers
from specchat.engine.decoding.tree import BRANCHES, LONGEST, Tree, tree_of
from specchat.engine.decoding.tree_part import TreePart
from specchat.engine.device.to_device import to_device
from specchat.engine.drafters.step_graphs import StepGraphs
from specchat.engine.request import MAX_GAMMA
from specchat.engine.sampling.rng import Stream, uniforms
from specchat.engine.sampling.sampler import standardise
from specchat.engine.sampling.sampling_rows import SamplingFlags, SamplingRows
from specchat.engine.sampling.without_replacement import draw_different
from specchat.engine.sequence.sequence import SequenceState

LEAD = LONGEST + 1
"""Tokens fed in the first step: as many as a round may have added."""
_WIDTH = max(len(level) for gamma in range(1, LONGEST + 1) for level in tree_of(gamma).levels)
"""Tokens that a level feeds, padded."""
_SPARE = MAX_GAMMA
"""Where drafted tokens go that are for nothing."""
_MOST = 1024
"""Shapes that are kept."""


@dataclass(frozen=True, slots=True)
class TreeTables:
    """What every level of the trees of γ = 1 … G feeds and offers, by γ - 1 and depth. Padding feeds and offers for
    nothing."""

    fed: Tensor
    """[G, G, W], int64: drafted tokens to feed, from 0 on."""
    columns: Tensor
    """[G, G, W], int64: where they are written, counted from the row's last token."""
    inside: Tensor
    """[G, G, W, N], bool: which of those columns they see."""
    depths: Tensor
    """[G, N], int64: depth of what is in such a column."""
    nodes: Tensor
    """[G, G, W], int64: nodes of the tree; `_SPARE` for padding."""
    children: Tensor
    """[G, G, W x `BRANCHES`], int64: the drafted tokens that are offered after them; `_SPARE` for none."""

    @classmethod
    @lru_cache(maxsize=4)
    def on(cls, device: torch.device) -> TreeTables:
        """The tables on a device."""
        shape = LONGEST, LONGEST, _WIDTH
        fed, columns = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        inside = np.zeros((*shape, MAX_GAMMA + _WIDTH), dtype=bool)
        inside[..., 0] = True
        depths = np.zeros((LONGEST, MAX_GAMMA + _WIDTH), dtype=np.int64)
        nodes, children = np.full(shape, _SPARE), np.full((*shape, BRANCHES), _SPARE)
        for g in range(LONGEST):
            tree, column_of = tree_of(g + 1), {0: 0}
            for depth, level in enumerate(tree.levels):
                columns[g, depth] = len(column_of) + np.arange(_WIDTH)
                for place, node in enumerate(level):
                    column_of.setdefault(node, len(column_of))
                    line = [column_of[each] for each in tree.path(node)]
                    fed[g, depth, place] = max(node - 1, 0)
                    inside[g, depth, place, line] = True
                    depths[g, line] = np.arange(1, len(line) + 1)
                    nodes[g, depth, place] = node
                    offered = tree.children[node]
                    children[g, depth, place, : len(offered)] = [child - 1 for child in offered]
        parts = (fed, columns, inside, depths, nodes, children.reshape(LONGEST, LONGEST, -1))
        return cls(*(to_device(torch.from_numpy(part), device) for part in parts))


class StaticTrees:
    """The trees of a draft model on a GPU, level by level.

    Args:
        passes: of the draft model.
        fit: logits of the draft model over the target's vocabulary.
        vocabulary: V, of the target.
    """

    def __init__(self, passes: GraphRunner, fit: Callable[[Tensor], Tensor], vocabulary: int) -> None:
        self._fit = fit
        integers = {"last": (), "tree": (), "fed": (LEAD,)}
        self._graphs = StepGraphs(passes, vocabulary, MAX_GAMMA + 1, integers, self._first, self._further, _MOST)
        self._tables = TreeTables.on(passes.pool.device)

    @property
    def bytes(self) -> int:
        """Memory of distributions."""
        return self._graphs.bytes

    def capture(self) -> None:
        """Capture the steps for all numbers of rows and columns."""
        self._graphs.capture()

    def draft(self, rows: Sequence[SequenceState], tree: Tree) -> tuple[Tensor, Tensor | None]:
        """Tokens [B, K] and, unless rows are greedy, the distributions [B, inner, V] that they were drawn from.

        Args:
            rows: B, all greedy or none; of each all but the last `LEAD` tokens are cached.
            tree: that of its depth (`tree_of`).
        """
        numbers: dict[str, ArrayLike] = {
            "last": [len(row.tokens) - 1 for row in rows],
            "tree": [tree.depth - 1] * len(rows),
            "fed": [[0] * (LEAD - len(row.tokens)) + row.tokens[-LEAD:] for row in rows],
            "u": uniforms([row.seed for row in rows], [row.rounds for row in rows], Stream.DRAFT, MAX_GAMMA + 1),
        }
        return self._graphs.draft(rows, tree.depth, numbers, len(tree), tree.inner)

    def _first(self, numbers: Numbers, columns: int, flags: SamplingFlags) -> None:
        self._graphs.at.zero_()
        fed, last = numbers["fed"], numbers["last"]
        written = last[:, None] - LEAD + 1 + torch.arange(LEAD, device=fed.device)
        written = torch.where(written < 0, self._graphs.spare, written)  # a text of fewer tokens
        logits = self._fit(self._graphs.read(fed, written, numbers, columns))
        self._offer(logits[:, -1:], numbers, flags)

    def _further(self, numbers: Numbers, columns: int, flags: SamplingFlags) -> None:
        self._graphs.at.add_(1).clamp_(max=LONGEST - 1)
        last = numbers["last"]
        fed = self._graphs.tokens[: len(last)].index_select(1, self._now("fed", numbers))
        written = (last[:, None] + self._now("columns", numbers)).clamp(max=self._graphs.spare)
        logits = self._fit(self._graphs.read(fed, written, numbers, columns, self._part(last, numbers)))
        self._offer(logits, numbers, flags)

    def _offer(self, logits: Tensor, numbers: Numbers, flags: SamplingFlags) -> None:
        """Put what is offered after the tokens [rows, P, V] of a level, and what it was drawn from, to its place."""
        rows, width = logits.shape[:2]
        children = self._now("children", numbers)[: width * BRANCHES]
        if flags.all_greedy:
            places = logits.topk(BRANCHES, -1).indices
        else:
            drawn_from = standardise(logits, SamplingRows.from_numbers(numbers["settings"], flags))
            self._graphs.q(rows).index_copy_(1, self._now("nodes", numbers)[:width], drawn_from)
            u = numbers["u"].index_select(1, children).view(rows, width, BRANCHES)
            places = draw_different(drawn_from, u)
        self._graphs.tokens[:rows].index_copy_(1, children, places.flatten(1))

    def _part(self, last: Tensor, numbers: Numbers) -> TreePart:
        """What the tokens of a level see."""
        rows, inside = len(last), self._now("inside", numbers)
        depths = self._tables.depths.index_select(0, numbers["tree"][:1])
        asking = self._graphs.at.expand(rows, _WIDTH)
        return TreePart(last, inside.expand(rows, *inside.shape), depths.expand(rows, -1), asking)

    def _now(self, name: str, numbers: Numbers) -> Tensor:
        """The entries of a table for the tree and the depth under way."""
        of_tree: Tensor = getattr(self._tables, name).index_select(0, numbers["tree"][:1])[0]
        return of_tree.index_select(0, self._graphs.at)[0]
