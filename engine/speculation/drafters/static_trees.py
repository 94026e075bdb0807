"""Trees of a draft model in fixed shapes: reading what is new, and every further level, are a CUDA graph each.

Which tokens of a tree a level feeds, what they see and where their children go are numbers on the device, so that all
trees share the graphs. What was accepted of a tree is fed again with the next one: on a GPU a pass over a few tokens
costs what a pass over one does, and the host need not know the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
import torch
from torch import Tensor

from specchat.engine.request import MAX_GAMMA
from specchat.engine.runner.cuda_graphs import GraphRunner
from specchat.engine.runner.region import Numbers, Region, Regions
from specchat.engine.runner.to_device import to_device
from specchat.engine.runner.tree import BRANCHES, LONGEST, Tree, tree_of
from specchat.engine.runner.tree_part import TreePart
from specchat.engine.sampling.rng import Stream, uniforms
from specchat.engine.sampling.sampler import standardise
from specchat.engine.sampling.sampling_rows import (
    NUMBERS,
    SamplingFlags,
    SamplingRows,
    coarse_flags,
    setting_numbers,
)
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
    """[G, G, W x `BRANCHES`], int64: the drafted tokens that are offered behind them; `_SPARE` for none."""

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
    """The trees of a draft model on a GPU: a graph hands tokens and distributions to the next in memory.

    Args:
        passes: of the draft model.
        fit: logits of the draft model over the target's vocabulary.
        vocabulary: V, of the target.
    """

    def __init__(self, passes: GraphRunner, fit: Callable[[Tensor], Tensor], vocabulary: int) -> None:
        self._passes = passes
        self._fit = fit
        self._vocabulary = vocabulary
        self._regions = Regions(passes.pool, passes.cache.slots, _MOST)
        self._numbers: dict[int, Numbers] = {}
        device = passes.pool.device
        self._tables = TreeTables.on(device)
        self._tokens = torch.zeros(self._regions.rows, MAX_GAMMA + 1, dtype=torch.long, device=device)
        self._at = torch.zeros(1, dtype=torch.long, device=device)
        """The depth under way."""

    @property
    def bytes(self) -> int:
        """Memory of distributions."""
        return self._regions.bytes

    @torch.inference_mode()
    def capture(self) -> None:
        """Capture the steps for all numbers of rows and columns."""
        for columns, rows in product(reversed(self._passes.column_counts), reversed(self._passes.row_counts)):
            for flags in coarse_flags(rows):
                self._steps(rows, columns, flags)

    @torch.inference_mode()
    def draft(self, rows: Sequence[SequenceState], tree: Tree) -> tuple[Tensor, Tensor | None]:
        """Tokens [B, K] and, unless rows are greedy, the distributions [B, inner, V] that they were drawn from.

        Args:
            rows: B, all greedy or none; of each all but the last `LEAD` tokens are cached.
            tree: that of its depth (`tree_of`).
        """
        sampling, seats = [row.request.sampling for row in rows], self._passes.seats([row.slot for row in rows])
        count, mine = seats.count, list(seats.mine)
        flags = SamplingFlags.of(sampling).strict.coarse(count)
        columns = self._passes.columns(max(len(row.tokens) for row in rows) + MAX_GAMMA)
        first, further = self._steps(count, columns, flags)
        by_seat = {
            "riding": np.zeros(count),
            "last": np.zeros(count),
            "fed": np.zeros((count, LEAD)),
            "slots": np.array(seats.slots),
            "mine": np.array(mine),
            "tree": np.full(count, tree.depth - 1),
            "u": np.zeros((count, MAX_GAMMA + 1)),
            "settings": setting_numbers([sampling[0]] * count),
        }
        by_seat["riding"][mine] = 1
        by_seat["last"][mine] = [len(row.tokens) - 1 for row in rows]
        by_seat["fed"][mine] = [[0] * (LEAD - len(row.tokens)) + row.tokens[-LEAD:] for row in rows]
        u = uniforms([row.seed for row in rows], [row.rounds for row in rows], Stream.DRAFT, MAX_GAMMA + 1)
        by_seat["u"][mine] = u
        by_seat["settings"][mine] = setting_numbers(sampling)
        first(by_seat, {})
        for _ in range(1, tree.depth):
            further.run()
        made = [self._tokens[:count, : len(tree)]]
        if not flags.all_greedy:
            made.append(self._q(count)[:, : tree.inner])
        if seats.in_order:
            tokens, *q = (part[: len(rows)] for part in made)
        else:
            tokens, *q = (part[self._numbers[count]["mine"][: len(rows)]] for part in made)
        return tokens, q[0] if q else None

    def _steps(self, rows: int, columns: int, flags: SamplingFlags) -> tuple[Region, Region]:
        """The first step, and any further one."""
        shape = rows, columns, flags
        first = self._regions.of(("first", *shape), lambda: self._step("first", *shape))
        return first, self._regions.of(("further", *shape), lambda: self._step("further", *shape))

    def _step(self, kind: str, rows: int, columns: int, flags: SamplingFlags) -> Region:
        device = self._passes.pool.device
        if rows not in self._numbers:
            integers = dict.fromkeys(("riding", "last", "slots", "mine", "tree"), (rows,)) | {"fed": (rows, LEAD)}
            self._numbers[rows] = Numbers(device, integers, {"u": (rows, MAX_GAMMA + 1), "settings": (rows, NUMBERS)})
        numbers, at, spare = self._numbers[rows], self._at, self._passes.cache.columns - 1

        def run() -> list[Tensor]:
            riding, last = numbers["riding"][:, None] > 0, numbers["last"]
            part: TreePart | None = None
            if kind == "first":
                at.zero_()
                fed = numbers["fed"]
                written = last[:, None] - LEAD + 1 + torch.arange(LEAD, device=device)
                written = torch.where(written < 0, spare, written)  # a text of fewer tokens
            else:
                at.add_(1).clamp_(max=LONGEST - 1)
                fed = self._tokens[:rows].index_select(1, self._now("fed", numbers))
                written = (last[:, None] + self._now("columns", numbers)).clamp(max=spare)
                part = self._part(last, numbers)
            written = torch.where(riding, written, spare)
            view = self._passes.view(numbers["slots"], columns, written)
            logits = self._fit(self._passes.step(fed, written, view, part)[0])
            self._offer(logits[:, -1:] if kind == "first" else logits, numbers, flags)
            return []

        self._passes.compile(run)
        return self._regions.region(numbers, {}, run)

    def _offer(self, logits: Tensor, numbers: Numbers, flags: SamplingFlags) -> None:
        """Put what is offered behind the tokens [rows, P, V] of a level, and what it was drawn from, to its place."""
        rows, width = logits.shape[:2]
        children = self._now("children", numbers)[: width * BRANCHES]
        if flags.all_greedy:
            places = logits.topk(BRANCHES, -1).indices
        else:
            drawn_from = standardise(logits, SamplingRows.from_numbers(numbers["settings"], flags))
            self._q(rows).index_copy_(1, self._now("nodes", numbers)[:width], drawn_from)
            u = numbers["u"].index_select(1, children).view(rows, width, BRANCHES)
            places = draw_different(drawn_from, u)
        self._tokens[:rows].index_copy_(1, children, places.flatten(1))

    def _part(self, last: Tensor, numbers: Numbers) -> TreePart:
        """What the tokens of a level see."""
        rows, inside = len(last), self._now("inside", numbers)
        depths = self._tables.depths.index_select(0, numbers["tree"][:1])
        asking = self._at.expand(rows, _WIDTH)
        return TreePart(last, inside.expand(rows, *inside.shape), depths.expand(rows, -1), asking)

    def _now(self, name: str, numbers: Numbers) -> Tensor:
        """The entries of a table for the tree and the depth under way."""
        of_tree: Tensor = getattr(self._tables, name).index_select(0, numbers["tree"][:1])[0]
        return of_tree.index_select(0, self._at)[0]

    def _q(self, rows: int) -> Tensor:
        size = (MAX_GAMMA + 1) * self._vocabulary
        shape = rows, MAX_GAMMA + 1, self._vocabulary
        return self._regions.shared("q", shape, self._regions.rows * size, torch.float32)
