"""Drafts that the kernels grow at the beginning of a round: from the text of a row where it repeats, else by a head."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from specchat.engine.backends.packed_acceptance import PenaltiesOfRows
from specchat.engine.decoding.proposal import Draft, Growing, Source, Support
from specchat.engine.decoding.tree import BRANCHES, tree_from
from specchat.engine.drafters.tree_growth import EDGES, GRADES, HOPE, LEAST, Asked, draft_of
from specchat.engine.kernels.growing_trees import GrowingTrees, GrownTree, GrowthRules
from specchat.engine.kernels.sampling import c_settings
from specchat.engine.kernels.structures import CGrowth
from specchat.engine.request import MAX_GAMMA
from specchat.engine.sampling.rng import Stream

RULES = GrowthRules(EDGES, MAX_GAMMA, BRANCHES, LEAST, HOPE, Stream.DRAFT)


class TextRules(NamedTuple):
    """Settings for drafts from texts."""

    marks: array[int]
    """`sk_mark` of each of the V tokens."""
    first: int
    """Bucket of grade 0."""
    least: int
    """Grade of the first token of a draft, at least."""
    names: tuple[str, str] | None = None
    """Names in records of drafts from texts and of drafts of the head; None without names."""


@dataclass(frozen=True, slots=True)
class KernelGrowth(Growing):
    """Drafts of B rows that the kernels grow (`engine.decoding.proposal.Growing`).

    Args:
        trees: to be grown.
        drawn: rows whose trees are drawn by the head.
        q: [B, longest, V'], of drawn trees.
        support: the V' tokens that the head can draft.
        rules: of drafts from texts.
        on_read: called with a slot, and up to which place the head has read it.
    """

    trees: GrowingTrees
    drawn: list[bool]
    q: Tensor | None = None
    support: Support | None = None
    rules: TextRules | None = None
    on_read: Callable[[int, int], None] = lambda *_: None

    def now(self) -> Draft:
        """Grow them without a pass; the draft."""
        draft = self.made(self.trees.grow(), self.trees.steps).trimmed()
        # The memory of its distributions is that of the next draft, which may be one of the same round.
        return draft if draft.q is None else replace(draft, q=draft.q.clone())

    def made(self, found: Sequence[GrownTree], steps: int) -> Draft:
        """The draft of trees that have grown."""
        for row in self.trees.rows:
            self.on_read(row.slot, row.begin)
        trees = [(tree.tokens, tree.buckets, tree_from(tuple(tree.parents))) for tree in found]
        draft = draft_of(trees, self.drawn, self.q, self.support, steps)
        if self.rules:
            first, names = self.rules.first, self.rules.names
            draft.free = [bool(tree.buckets) and tree.buckets[0] >= first for tree in found]
            if draft.drawn:
                draft.drawn = [drawn and not free for drawn, free in zip(draft.drawn, draft.free, strict=True)]
            draft.sources = names and [(Source(names[0] if free else names[1]),) for free in draft.free]
        return draft


def fill(growth: CGrowth, asked: Asked, rules: TextRules | None) -> object:
    """Set what a row's draft may be; the memory that is pointed to.

    Args:
        growth: set.
        asked: what the draft may be.
        rules: of drafts from texts; None without texts.
    """
    row, budget = asked.row, asked.settled
    numbers = budget.numbers
    growth.slot, growth.depth, growth.room = row.slot, asked.depth, min(row.room, MAX_GAMMA)
    growth.line, growth.repeatable, growth.step = budget.line, budget.repeatable, budget.step
    growth.passes = numbers.buffer_info()[0]
    growth.begin, growth.end, growth.number = 0, 0, row.rounds
    growth.text, growth.sampling, growth.q = None, None, None
    # Fixed prices have no rates of texts, which a draft of fixed length does not need.
    if rules and asked.text and (budget.line or len(budget.rates) > rules.first):
        growth.text, growth.text_count, growth.text_least = asked.text.address, asked.text.count, rules.least
        growth.text_rates = growth.passes + 8 * (len(budget.passes) + rules.first)
        growth.text_again = growth.text_rates + 8 * len(budget.rates)
    return numbers, asked.text


def fill_for_head(growth: CGrowth, asked: Asked, begin: int, q: int, penalties: PenaltiesOfRows) -> object:
    """Set what a head needs for a row's tree, after `fill`; the memory that is pointed to.

    Args:
        growth: set.
        asked: what the tree may be.
        begin: first place that the head has to read.
        q: address of the distributions of each node's children, if they are drawn.
        penalties: of all rows.
    """
    row = asked.row
    growth.first_grade = GRADES if row.draws else 0
    # The last place is scored even where it has been read.
    begin = min(begin, len(row.tokens) - 2)
    ids = array("q", row.tokens[begin + 1 :])
    growth.begin, growth.end, growth.ids = begin, begin + len(ids), ids.buffer_info()[0]
    growth.rates = growth.passes + 8 * (MAX_GAMMA + 1 + growth.first_grade)
    growth.sampling = c_settings(row.request.sampling) if row.draws else None
    growth.penalties = penalties.of(row).c() if row.adjusts else None
    growth.seed, growth.q = row.seed, q if row.draws else 0
    return ids
