"""Trees that grow on the kernels: all steps of all rows in one call, bit by bit what `grow` gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from specchat.engine.decoding.proposal import Draft, Support
from specchat.engine.decoding.tree import BRANCHES, tree_from
from specchat.engine.drafters.growing.grow import Asked
from specchat.engine.drafters.growing.growth import EDGES, GRADES, HOPE, LEAST
from specchat.engine.kernels.tree_growth import GrownTree, GrowthRules, TreeRequest
from specchat.engine.request import MAX_GAMMA
from specchat.engine.sampling.rng import Stream

_RULES = GrowthRules(EDGES, MAX_GAMMA, BRANCHES, LEAST, HOPE, Stream.DRAFT)


class GrowingLayer(Protocol):
    """A head whose trees grow on the kernels."""

    def grow(
        self, wanted: Sequence[TreeRequest], q: Tensor | None, known: Tensor, rules: GrowthRules
    ) -> tuple[list[GrownTree], int]:
        """As `engine.kernels.draft_head.PackedHead.grow`."""


def grow_on_kernels(asked: Sequence[Asked], begins: Sequence[int], layer: GrowingLayer, support: Support) -> Draft:
    """The trees of B rows.

    Args:
        asked: [B], of rows of two tokens or more.
        begins: [B], the first place that the head has to read of each.
        layer: the head.
        support: the V' tokens that can be drafted.
    """
    drawn = [not each.row.request.sampling.greedy for each in asked]
    known = support.tokens
    q = torch.empty(len(asked), MAX_GAMMA, len(known)) if any(drawn) else None
    wanted = [_wanted(each, begin) for each, begin in zip(asked, begins, strict=True)]
    found, steps = layer.grow(wanted, q, known, _RULES)
    if q is not None:
        if not all(drawn):
            q[[not each for each in drawn]] = 0
        q = q[:, : max(max(tree.parents, default=-1) for tree in found) + 1]
    return Draft(
        [tree.tokens for tree in found],
        [len(tree.tokens) for tree in found],
        buckets=[
            [grade + GRADES for grade in tree.grades] if drawn[i] else tree.grades for i, tree in enumerate(found)
        ],
        trees=[tree_from(tuple(tree.parents)) for tree in found],
        tree_q=q,
        support=support,
        steps=steps,
    )


def _wanted(asked: Asked, begin: int) -> TreeRequest:
    row, budget = asked.row, asked.settled
    greedy = row.request.sampling.greedy
    first = 0 if greedy else GRADES
    # The last place is scored with even where it has been read.
    begin = min(begin, len(row.tokens) - 2)
    return TreeRequest(
        slot=row.slot,
        begin=begin,
        ids=row.tokens[begin + 1 :],
        depth=asked.depth,
        line=budget.line,
        repeatable=budget.repeatable,
        passes=budget.passes,
        step=budget.step,
        rates=[budget.rate(bucket) for bucket in range(first, first + GRADES)],
        sampling=None if greedy else row.request.sampling,
        seed=row.seed,
        number=row.rounds,
    )
