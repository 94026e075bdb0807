"""Trees that grow by what the head is sure of: how many tokens are offered where, and when drafting ends.

As in EAGLE-2 (Li et al. 2024) a token's chance is the product of the confidences on its path, which are close to
acceptance rates; here each grade of confidence has the rate that it has shown, and a token is offered if its chance
exceeds the price of verifying it.

Exactness of drawn tokens (SpecInfer, Miao et al. 2024): how many tokens are offered after a node may depend on
everything drafted before them, q there included, but on none of the draws that it is about. So that number is settled
level by level, from the shares of the likeliest tokens, before anything is drawn, and what was drawn is offered.
Greedy tokens are not drawn: the whole tree is known, and its best tokens are kept.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from operator import add, sub
from typing import NamedTuple

from specchat.engine.decoding.gamma.budget import Budget
from specchat.engine.decoding.tree import BRANCHES, Tree, tree_from
from specchat.engine.request import MAX_GAMMA

EDGES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)
_RATES = (0.01, 0.03, 0.07, 0.14, 0.3, 0.5, 0.6, 0.77, 0.8, 0.95, 0.98)
"""Acceptance rates of the default model's head between these edges, greedy; they depend on neither rank nor depth."""
GRADES = len(_RATES)
EXPECTED = {grade + drawn * GRADES: rate for drawn in (0, 1) for grade, rate in enumerate(_RATES)}
"""The rate first thought of, by bucket: grades of greedy tokens, then those of drawn ones."""
LEAST = 0.02
"""Least price of a token: where passes cost nothing the places in them are what is short."""
HOPE = 0.6
"""Chance of the likeliest token after one that was accepted, on average: what continuing after a token may bring."""


@dataclass(frozen=True, slots=True)
class Node:
    """A token of the tree, or its root, that has been scored."""

    place: int
    """In the tree; 0 for the root."""
    chance: float
    source: int
    """Which of the places scored in the last step."""
    path: tuple[int, ...] = ()
    """Columns of the drafter's memory of the tokens before and of this one."""


class Offered(NamedTuple):
    """A token to be offered."""

    node: Node
    """After which."""
    rank: int
    bucket: int
    chance: float


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
        """No token is cheaper."""
        self._final = drawn or budget.line > 0
        """Whether what is offered stays; else the best of it is kept in the end."""
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.buckets: list[int] = []
        self.inner: list[int] = []
        """Nodes that tokens are offered after."""
        self._chances: list[float] = []
        self.columns: dict[int, int] = {}
        """Of each token that has been expanded, the column where the drafter's memory has it."""
        self._line = 0
        """The last token that is drafted regardless of its cost."""
        self._level = 0

    def offers(self, nodes: Sequence[Node], shares: Sequence[Sequence[float]]) -> list[Offered]:
        """What to offer after the nodes of one depth: settled before it is drawn.

        Args:
            nodes: scored nodes.
            shares: probabilities of the likeliest tokens of every place scored, in order.
        """
        self._level += 1
        found = [each for node in nodes for each in self._ranked(node, shares[node.source])]
        found.sort(key=lambda each: -each.chance)
        kept: list[Offered] = []
        for each in found:
            on_line = self._level <= self.budget.line and each.rank == 0 and each.node.place == self._line
            room = not self._final or len(self.tokens) + len(kept) < MAX_GAMMA
            if room and (on_line or each.chance > self._price(len(kept))):
                kept.append(each)
        return sorted(kept, key=lambda each: (each.node.place, each.rank))

    def add(self, offered: Offered, token: int) -> None:
        """Offer a token; those after one node come in the order of their ranks."""
        self.tokens.append(token)
        self.parents.append(offered.node.place)
        self.buckets.append(offered.bucket)
        self._chances.append(offered.chance)
        if not self.inner or self.inner[-1] != offered.node.place:
            self.inner.append(offered.node.place)

    def promising(self, added: Sequence[Offered]) -> tuple[list[tuple[int, Offered]], float]:
        """The tokens of a level, the last ones added, that are worth expanding, and what that may gain."""
        first = len(self.tokens) - len(added) + 1
        full = self._final and len(self.tokens) >= MAX_GAMMA
        if self._level >= self._depth or full:
            return [], 0.0
        price = self._price(0)
        found: list[tuple[float, int, Offered]] = []
        line, self._line = self._line, 0
        for place, each in enumerate(added, first):
            worth = each.chance * HOPE - price
            on_line = self._level < self.budget.line and each.rank == 0 and each.node.place == line
            if on_line:
                self._line, worth = place, max(worth, 0.0) + self.budget.step
            if worth > 0:
                found.append((worth, place, each))
        found = sorted(found, key=lambda one: -one[0])[: MAX_GAMMA - len(self.columns)]
        gain = added_up(worth for worth, _, _ in found)
        return sorted(((place, each) for _, place, each in found), key=lambda one: one[0]), gain

    def next_column(self, place: int) -> int:
        """Where the drafter's memory takes the next token that is expanded."""
        self.columns[place] = len(self.columns) + 1
        return self.columns[place]

    def columns_along(self, tokens: Sequence[int]) -> list[int]:
        """Columns of the drafted tokens that these are, one after the other, as far as they have been expanded."""
        found: list[int] = []
        node = 0
        for token in tokens:
            places = (place for place in self.columns if self.parents[place - 1] == node)
            node = next((place for place in places if self.tokens[place - 1] == token), 0)
            if not node:
                break
            found.append(self.columns[node])
        return found

    def tree(self) -> tuple[list[int], list[int], Tree]:
        """Tokens, buckets and tree; for greedy rows the subset of tokens that pays best."""
        if self._final:
            return self.tokens, self.buckets, tree_from(tuple(self.parents))
        order = sorted(range(len(self.tokens)), key=lambda i: (-self._chances[i], i))
        worth = [0.0]
        for count, gained in enumerate(accumulate(self._chances[i] for i in order[:MAX_GAMMA]), 1):
            worth.append(gained - self.budget.passes[count])
        kept = sorted(order[: worth.index(max(worth))])
        places = {0: 0, **{i + 1: place for place, i in enumerate(kept, 1)}}
        parents = tuple(places[self.parents[i]] for i in kept)
        return [self.tokens[i] for i in kept], [self.buckets[i] for i in kept], tree_from(parents)

    def _ranked(self, node: Node, shares: Sequence[float]) -> list[Offered]:
        """The tokens after a node, by rank; none is likelier than the one before it."""
        ranked: list[Offered] = []
        chance = node.chance
        for rank, share in enumerate(shares[:BRANCHES]):
            if share <= 0:
                break
            bucket = bisect_right(EDGES, share) + (GRADES if self._drawn else 0)
            chance = min(chance, node.chance * self.budget.rate(bucket))
            if rank and chance <= self._floor:  # nor will later ones be offered
                break
            ranked.append(Offered(node, rank, bucket, chance))
        return ranked

    def _price(self, more: int) -> float:
        """Of one token next to those there are and `more`."""
        count = min(len(self.tokens) + more, MAX_GAMMA - 1)
        return max(self.budget.passes[count + 1] - self.budget.passes[count], LEAST)


def nominal_rate(bucket: int) -> float:
    """The rate that is thought of first."""
    return EXPECTED[bucket]


def added_up(values: Iterable[float]) -> float:
    """The sum, one value after the other: from Python 3.12 on `sum` rounds otherwise than the kernels do."""
    return reduce(add, values, 0.0)


def going_on(growths: Sequence[Growth], gains: Sequence[float]) -> list[int]:
    """Which rows take one more draft step: rows that may use measured costs share it, the others decide alone."""
    alone = [i for i, growth in enumerate(growths) if growth.budget.repeatable]
    together = [i for i, growth in enumerate(growths) if not growth.budget.repeatable]
    going = [i for i in alone if gains[i] and gains[i] >= growths[i].budget.step]
    if added_up(gains[i] for i in together) > added_up(growths[i].budget.step for i in together):
        going += [i for i in together if gains[i]]
    return sorted(going)
