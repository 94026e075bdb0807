"""Trees that grow by confidence: how many tokens are offered where, and when drafting ends.

As in EAGLE-2 (Li et al. 2024) a token's chance is the product of the confidences on its path, which are close to
acceptance rates; here each grade of confidence has the rate that it has shown, and a token is offered if its chance
exceeds the price of verifying it.

Exactness of drawn tokens (SpecInfer, Miao et al. 2024): how many tokens are offered after a node may depend on
everything drafted before them, q there included, but on none of the draws that it is about. So that number is fixed
level by level, from the shares of the likeliest tokens, before anything is drawn, and what was drawn is offered.
Other tokens are not drawn: the whole tree is known, and its best tokens are kept. Drawn drafts are chains: one
token is offered after a node, or none.

This is the reference, and what draft models and block drafters on tensors use. On packed weights they and heads grow
their trees in one call of the kernels (`engine.backends.kernel_drafting`): the same trees, and the same q up to
rounding. There drafts have their row's bias and penalties, which the reference leaves to what scores places.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import accumulate
from operator import add, sub
from typing import NamedTuple

import torch
from torch import Tensor

from specchat.engine.decoding.draft import Budget, Draft, RowOrder
from specchat.engine.decoding.tree import BRANCHES, LONGEST, Tree, tree_from
from specchat.engine.decoding.tree_mask import TreePlace
from specchat.engine.device.device import to_device
from specchat.engine.kernels.drafters import Scores
from specchat.engine.request import MAX_GAMMA
from specchat.engine.sampling import xtc
from specchat.engine.sampling.rng import Stream, uniform
from specchat.engine.sampling.sampler import SamplingRows, draw, standardise
from specchat.engine.sequence.sequence import SequenceState

EDGES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)
_GREEDY = (0.01, 0.03, 0.07, 0.14, 0.3, 0.5, 0.6, 0.77, 0.8, 0.95, 0.98)
"""Acceptance rates of the default model's head between these edges, greedy; they depend on neither rank nor depth."""
_DRAWN = (0.3, 0.3, 0.33, 0.38, 0.4, 0.47, 0.55, 0.61, 0.71, 0.82, 0.92)
"""Rates at temperature 1, by the probability of the likeliest token; a drawn one is accepted by the overlap of p, q."""
GRADES = len(_GREEDY)
EXPECTED = dict(enumerate((*_GREEDY, *_DRAWN)))
"""Prior rates by bucket: grades of greedy tokens, then grades of drawn ones."""
LEAST = 0.02
"""Least price of a token: where passes cost nothing the places in them are what is short."""
NO_STEP = 1e-9
"""Price of a further position that takes no step: above 0, so that required positions gain something."""
HOPE = 0.6
"""Chance of the likeliest token after one that was accepted, on average: what continuing after a token may bring."""

Expand = Callable[[list[TreePlace], list[int]], Scores]
"""Scores what follows n drafted tokens, from the place in the step before that each follows; tokens of a row are
neighbours."""


@lru_cache
def fixed_budget(required: int = 0) -> Budget:
    """A budget of fixed prices, about the prices of quantised weights on a CPU, for rows that may not learn them.

    Args:
        required: as in `Budget`.
    """
    return Budget([0.07 * n for n in range(MAX_GAMMA + 1)], 0.04, EXPECTED, required, repeatable=True)


@dataclass(frozen=True, slots=True)
class Node:
    """A token of the tree, or its root, that has been scored."""

    place: int
    """Index in the tree; 0 for the root."""
    chance: float
    source: int
    """Index among the places scored in the last step."""
    path: tuple[int, ...] = ()
    """Columns of the drafter's memory of the tokens before and of this one."""


class Offered(NamedTuple):
    """A token to be offered."""

    node: Node
    """After which."""
    rank: int
    bucket: int
    chance: float


class Expanded(NamedTuple):
    """Drafted tokens that a draft model has read, numbered from 1 on in the order of their columns; 0 is the row's last
    token."""

    tokens: Sequence[int]
    parents: Sequence[int]
    """Number of the token before each."""

    def along(self, tokens: Sequence[int]) -> list[int]:
        """Numbers of these tokens, which follow each other, up to the first that was not read."""
        numbers = {each: number for number, each in enumerate(zip(self.parents, self.tokens, strict=True), 1)}
        found: list[int] = []
        for token in tokens:
            number = numbers.get((found[-1] if found else 0, token))
            if number is None:
                break
            found.append(number)
        return found


class Growth:
    """The tree of one row.

    Args:
        budget: what it may cost.
        depth: positions that it may have.
        drawn: whether its tokens are drawn, not the likeliest.
    """

    def __init__(self, budget: Budget, depth: int, *, drawn: bool) -> None:
        self.budget, self._depth, self._drawn = budget, depth, drawn
        self._floor = max(min(map(sub, budget.passes[1:], budget.passes)), LEAST)
        """Price of the cheapest token."""
        self._final = drawn or budget.required > 0
        """Whether what is offered stays; else the best of it is kept in the end."""
        self.tokens: list[int] = []
        self._offered: list[Offered] = []
        """The offer of each of these tokens."""
        self._columns: dict[int, int] = {}
        """Column of the drafter's memory, by token that has been expanded."""
        self._required = 0
        """The last token that is drafted regardless of its cost."""
        self._level = 0

    def offers(self, nodes: Sequence[Node], shares: Sequence[Sequence[float]]) -> list[Offered]:
        """Offers after the nodes of one depth, decided before tokens are drawn.

        Args:
            nodes: scored nodes.
            shares: probabilities of the likeliest tokens of every place scored, in order.
        """
        self._level += 1
        found = [each for node in nodes for each in self._ranked(node, shares[node.source])]
        found.sort(key=lambda each: -each.chance)
        kept: list[Offered] = []
        for each in found:
            is_required = self._level <= self.budget.required and each.rank == 0 and each.node.place == self._required
            room = not self._final or len(self.tokens) + len(kept) < MAX_GAMMA
            if room and (is_required or each.chance > self._price(len(kept))):
                kept.append(each)
        return sorted(kept, key=lambda each: (each.node.place, each.rank))

    def add(self, offered: Offered, token: int) -> None:
        """Offer a token; tokens after one node come in the order of their ranks."""
        self.tokens.append(token)
        self._offered.append(offered)

    def promising(self, added: Sequence[Offered]) -> tuple[list[tuple[int, Offered]], float]:
        """The tokens of a level, the last ones added, that are worth expanding, and what that may gain."""
        first = len(self.tokens) - len(added) + 1
        full = self._final and len(self.tokens) >= MAX_GAMMA
        if self._level >= self._depth or full:
            return [], 0.0
        price = self._price(0)
        found: list[tuple[float, int, Offered]] = []
        before, self._required = self._required, 0
        for place, each in enumerate(added, first):
            worth = each.chance * HOPE - price
            is_required = self._level < self.budget.required and each.rank == 0 and each.node.place == before
            if is_required:
                self._required, worth = place, max(worth, 0.0) + self.budget.step
            if worth > 0:
                found.append((worth, place, each))
        found = sorted(found, key=lambda one: -one[0])[: MAX_GAMMA - len(self._columns)]
        gain = _added_up(worth for worth, _, _ in found)
        return sorted(((place, each) for _, place, each in found), key=lambda one: one[0]), gain

    def next_column(self, place: int) -> int:
        """Assign a column of the drafter's memory to a token that is expanded next."""
        self._columns[place] = len(self._columns) + 1
        return self._columns[place]

    @property
    def expanded(self) -> Expanded:
        """The tokens that were expanded."""
        before = [self._columns.get(self._offered[place - 1].node.place, 0) for place in self._columns]
        return Expanded([self.tokens[place - 1] for place in self._columns], before)

    def tree(self) -> tuple[list[int], list[int], Tree]:
        """Tokens, buckets and tree; of tokens that are not drawn the subset of tokens that pays best."""
        offered = self._offered
        if self._final:
            return self.tokens, [each.bucket for each in offered], tree_from(tuple(each.node.place for each in offered))
        order = sorted(range(len(offered)), key=lambda i: (-offered[i].chance, i))
        worth = [0.0]
        for count, gained in enumerate(accumulate(offered[i].chance for i in order[:MAX_GAMMA]), 1):
            worth.append(gained - self.budget.passes[count])
        kept = sorted(order[: worth.index(max(worth))])
        places = {0: 0, **{i + 1: place for place, i in enumerate(kept, 1)}}
        parents = tuple(places[offered[i].node.place] for i in kept)
        return [self.tokens[i] for i in kept], [offered[i].bucket for i in kept], tree_from(parents)

    def _ranked(self, node: Node, shares: Sequence[float]) -> list[Offered]:
        """The tokens after a node, by rank; none is likelier than the one before it.

        One if it is drawn: for each further one a residual distribution over the vocabulary would be computed, which
        takes longer than what it brings.
        """
        ranked: list[Offered] = []
        chance = node.chance
        for rank, share in enumerate(shares[:BRANCHES]):
            if share <= 0:
                break
            bucket = bisect_right(EDGES, share) + (GRADES if self._drawn else 0)
            chance = min(chance, node.chance * self.budget.rates[bucket])
            if rank and (self._drawn or chance <= self._floor):  # nor will later ones be offered
                break
            ranked.append(Offered(node, rank, bucket, chance))
        return ranked

    def _price(self, more: int) -> float:
        """Price of one token in addition to the current ones and `more`."""
        count = min(len(self.tokens) + more, MAX_GAMMA - 1)
        return max(self.budget.passes[count + 1] - self.budget.passes[count], LEAST)


def grow(
    orders: Sequence[RowOrder], scores: Scores, expand: Expand, known: Sequence[int], deepest: int = LONGEST
) -> tuple[list[Draft], list[Expanded]]:
    """The trees of B rows, and the tokens of each that were expanded.

    Args:
        orders: [B].
        scores: of each row's last token.
        expand: scores what follows drafted tokens.
        known: the V' tokens that can be drafted.
        deepest: positions of a tree.
    """
    rows = [order.row for order in orders]
    growths = [Growth(order.budget, min(order.gamma, deepest), drawn=order.row.draws) for order in orders]
    q = [torch.empty(MAX_GAMMA, len(known)) if row.draws else None for row in rows]
    steps, nodes = 0, [[Node(0, 1.0, i)] for i in range(len(rows))]
    while any(nodes):
        steps += 1
        best, shares = scores.best.tolist(), scores.shares.tolist()
        promises = []
        for i, growth in enumerate(growths):
            added = growth.offers(nodes[i], shares)
            for each in added:
                node, place = each.node, best[each.node.source][each.rank]
                if (own := q[i]) is not None:
                    place = _draw(rows[i], growth, node, scores.logits[node.source], own[node.place])
                growth.add(each, known[place])
            promises.append(growth.promising(added))
        nodes, places, sources = [[] for _ in rows], list[TreePlace](), list[int]()
        for i in choose_expanded(growths, [gain for _, gain in promises]):
            for place, each in promises[i][0]:
                path, token, column = each.node.path, growths[i].tokens[place - 1], growths[i].next_column(place)
                nodes[i].append(Node(place, each.chance, len(places), (*path, column)))
                places.append(TreePlace(rows[i].slot, len(rows[i].tokens) - 1, token, column, path))
                sources.append(each.node.source)
        if places:
            scores = expand(places, sources)
    drafts = []
    for growth, own in zip(growths, q, strict=True):
        tokens, buckets, tree = growth.tree()
        drafts.append(Draft(tokens, tree, own if own is None else own[: tree.inner], buckets=buckets, steps=steps))
    return drafts, [growth.expanded for growth in growths]


def _draw(row: SequenceState, growth: Growth, node: Node, logits: Tensor, q: Tensor) -> int:
    """Draw the token after a node.

    Args:
        row: whose draft is drawn.
        growth: the tree so far.
        node: has no child yet.
        logits: [V'], after the node.
        q: [V'], float32: gets what the token is drawn from.

    Returns:
        Its place among the V' tokens.
    """
    sampling = row.request.sampling
    settings = SamplingRows.of([sampling], logits.device)
    if sampling.xtc:
        limit = xtc.threshold(sampling, row.seed, len(row.tokens) + len(node.path))
        settings = replace(settings, xtc=to_device([[limit]], logits.device, torch.float64))
    q.copy_(standardise(logits[None, None], settings)[0, 0])
    u = uniform(row.seed, row.rounds, Stream.DRAFT, len(growth.tokens))
    return int(draw(q[None], torch.tensor([u], dtype=torch.float64)))


def _added_up(values: Iterable[float]) -> float:
    """The sum, one value after the other: from Python 3.12 on `sum` rounds otherwise than the kernels do."""
    return reduce(add, values, 0.0)


def choose_expanded(growths: Sequence[Growth], gains: Sequence[float]) -> list[int]:
    """Indices of the rows that take one more draft step: rows with measured costs share it, the others decide alone."""
    repeatable = [i for i, growth in enumerate(growths) if growth.budget.repeatable]
    sharing = [i for i, growth in enumerate(growths) if not growth.budget.repeatable]
    expanded = [i for i in repeatable if gains[i] and gains[i] >= growths[i].budget.step]
    if _added_up(gains[i] for i in sharing) > _added_up(growths[i].budget.step for i in sharing):
        expanded += [i for i in sharing if gains[i]]
    return sorted(expanded)
