"""Drafts of trees that grow step by step, as long as that pays (`engine.drafters.growing.growth`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specchat.engine.decoding.gamma.budget import Budget, repeatable
from specchat.engine.decoding.proposal import Draft, Support
from specchat.engine.decoding.tree import LONGEST
from specchat.engine.drafters.growing.drawer import Drawer
from specchat.engine.drafters.growing.growth import Growth, Node, going_on, nominal_rate
from specchat.engine.drafters.growing.scores import Place, Scores
from specchat.engine.request import MAX_GAMMA
from specchat.engine.sequence.sequence import SequenceState

DrawerOf = Callable[[SequenceState, Tensor], Drawer]
"""The drawer of a row, with a place for its distributions."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What one row's tree may be."""

    row: SequenceState
    gamma: int
    """Positions."""
    budget: Budget | None
    """What it may cost, where that may be learnt."""

    @property
    def settled(self) -> Budget:
        """What it may cost; fixed prices where they may not be learnt."""
        line = 0 if self.row.request.gamma is None else self.gamma
        return self.budget or repeatable(nominal_rate, line)

    @property
    def depth(self) -> int:
        """Positions of a tree."""
        return min(self.gamma, LONGEST)


def grow(
    asked: Sequence[Asked],
    scores: Scores,
    go_on: Callable[[list[Place]], Scores],
    known: Sequence[int],
    support: Support,
    drawer_of: DrawerOf = Drawer,
) -> tuple[Draft, list[Growth]]:
    """The trees of B rows, and how each has grown.

    Args:
        asked: [B].
        scores: [B, 1, V'], after each row's last token, with the likeliest of them.
        go_on: scores what follows n drafted tokens, those of a row next to each other: [1, n, V'].
        known: the V' tokens that can be drafted.
        support: the same.
        drawer_of: draws for rows that are not greedy.
    """
    rows = [each.row for each in asked]
    drawn = [not row.request.sampling.greedy for row in rows]
    q = torch.empty(len(rows), MAX_GAMMA, len(known)) if any(drawn) else None
    drawers = [drawer_of(row, q[i]) if q is not None and drawn[i] else None for i, row in enumerate(rows)]
    growths = [Growth(each.settled, each.depth, drawn=drawn[i]) for i, each in enumerate(asked)]
    steps = 0
    nodes = [[Node(0, 1.0, i)] for i in range(len(rows))]
    while any(nodes):
        steps += 1
        assert scores.best is not None
        assert scores.shares is not None
        best, shares = scores.best.tolist(), scores.shares.tolist()
        promises = []
        for growth, drawer, mine in zip(growths, drawers, nodes, strict=True):
            added = growth.offers(mine, shares)
            if drawer is None:
                for each in added:
                    growth.add(each, known[best[each.node.source][each.rank]])
            else:
                added = drawer.draw(growth, added, scores.logits, known)
            promises.append(growth.promising(added))
        nodes = [[] for _ in rows]
        places: list[Place] = []
        for i in going_on(growths, [gain for _, gain in promises]):
            for place, each in promises[i][0]:
                path, token, column = each.node.path, growths[i].tokens[place - 1], growths[i].next_column(place)
                nodes[i].append(Node(place, each.chance, len(places), (*path, column)))
                places.append(Place(rows[i], token, column, path, each.node.source))
        if places:
            scores = go_on(places)
    whole = [growth.tree() for growth in growths]
    if q is not None:
        q[[not each for each in drawn]] = 0
        q = q[:, : max(tree.inner for _, _, tree in whole)]
    tokens = [each for each, _, _ in whole]
    draft = Draft(
        tokens,
        [tree for _, _, tree in whole],
        q,
        support,
        None if q is None else drawn,
        [buckets for _, buckets, _ in whole],
        steps,
    )
    return draft, growths
