"""Drafts that the kernels make by a recipe: at the beginning of a round, or in a call of their own."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from ctypes import _Pointer, addressof, c_int64, pointer
from dataclasses import replace

import torch
from torch import Tensor

from specchat.engine.decoding.draft import Draft, RowOrder, Source
from specchat.engine.decoding.drafter import NetworkRecipe, Recipe
from specchat.engine.decoding.tree import BRANCHES, tree_from
from specchat.engine.decoding.tree_growth import EDGES, GRADES, HOPE, LEAST, NO_STEP, Expanded
from specchat.engine.kernels.library import CGrowing, CGrowth, CPenalties, c_settings, library
from specchat.engine.kernels.round import TextMemory, c_reads
from specchat.engine.request import MAX_GAMMA
from specchat.engine.sampling.rng import Stream
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.settings import Sampling

_EDGES = array("d", EDGES)
_EXPANDED = 2 * MAX_GAMMA
"""Numbers of `sk_growth.expanded`."""


class KernelDrafting:
    """`sk_growing` of B rows and what has to live as long; used again for each round.

    Args:
        recipe: of the drafts.
        penalties: bias and penalties of rows.
        count: B.
    """

    def __init__(self, recipe: Recipe, penalties: PenaltiesOfRows, count: int) -> None:
        self._recipe, self._penalties = recipe, penalties
        self._q: Tensor | None = None
        """[B, `MAX_GAMMA`, V'], distributions that tokens are drawn from."""
        self._rows = (CGrowth * count)()
        self._given: Sequence[Draft | None] = ()
        self._stepping: Mapping[int, SequenceState] = {}
        """Rows, by index, that a network takes draft steps for."""
        self._kept: list[object] = []
        network = recipe.network
        self._expanded = (c_int64 * (_EXPANDED * count))() if network and network.has_expanded else None
        """[B, 2, `MAX_GAMMA`], `sk_growth.expanded`."""
        self.support = network.support if network else None
        known, places = (part.data_ptr() for part in self.support) if self.support else (None, None)
        self.c = CGrowing(
            row_count=count,
            rows=self._rows,
            known=known,
            places=places,
            vocabulary=penalties.vocabulary,
            edges=_EDGES.buffer_info()[0],
            edge_count=len(EDGES),
            longest=MAX_GAMMA,
            branches=network.branches if network else BRANCHES,
            least=LEAST,
            hope=HOPE,
            stream=Stream.DRAFT,
            first=network.first if network else 0,
        )
        if recipe.text:
            self.c.marks, self.c.text_grade = recipe.text.marks.buffer_info()[0], recipe.text.first

    def fill(self, orders: Sequence[RowOrder], given: Sequence[Draft | None] = ()) -> None:
        """Set what is to be drafted.

        Args:
            orders: [B].
            given: [B], drafts that are known already; None for rows that the kernels draft for. Empty if all are.
        """
        self._given, self._kept = given or [None] * len(orders), []
        for i, (order, draft) in enumerate(zip(orders, self._given, strict=True)):
            if draft is None:
                self._fill_row(self._rows[i], order)
            else:
                self._rows[i] = CGrowth(given=1)
        self.c.read_count, self.c.threads = 0, torch.get_num_threads()
        network = self._recipe.network
        if not network:
            return
        # A head has no place for a text of one token.
        self._stepping = {
            i: order.row
            for i, order in enumerate(orders)
            if self._given[i] is None and order.gamma and len(order.row.tokens) > network.first
        }
        begins = network.take_unread([*self._stepping.values()])
        for i, begin in zip(self._stepping, begins, strict=True):
            self._fill_network(i, orders[i], network, begin)
        states = network.take_states() if self._stepping else ()
        self._kept.append(states)
        if states:
            self.c.read_count, self.c.read = len(states), c_reads(states, network.width)

    def _fill_row(self, growth: CGrowth, order: RowOrder) -> None:
        """Set prices, and the text of a row if it is drafted from."""
        row, text, budget = order.row, self._recipe.text, order.budget
        numbers = order.budget.numbers
        self._kept.append(numbers)
        growth.given, growth.slot, growth.depth, growth.room = 0, row.slot, 0, min(row.room, MAX_GAMMA)
        growth.required, growth.repeatable, growth.step = budget.required, budget.repeatable, budget.step
        growth.passes = numbers.buffer_info()[0]
        growth.begin, growth.end, growth.number = 0, 0, row.rounds
        growth.text, growth.sampling, growth.q, growth.penalties = None, None, None, None
        # Fixed prices have no rates of texts, which a draft of fixed length does not need.
        if text and order.drafts and (budget.required or len(budget.rates) > text.first):
            memory = text.memory(row)
            self._kept.append(memory)
            growth.text, growth.text_count, growth.text_least = memory.address, memory.count, text.least
            growth.text_rates = growth.passes + 8 * (len(budget.passes) + text.first)
            growth.text_repeat_rates = growth.text_rates + 8 * len(budget.rates)

    def _fill_network(self, i: int, order: RowOrder, network: NetworkRecipe, begin: int) -> None:
        """Set what a network needs to grow a row's tree; `begin` is the first place that it has to read."""
        growth, row = self._rows[i], order.row
        growth.depth = min(order.gamma, network.deepest)
        growth.first_grade = GRADES if row.draws else 0
        if network.one_step:
            growth.step = NO_STEP
        # The last place is scored even where it has been read.
        begin = min(begin, len(row.tokens) - network.first - 1)
        ids = array("q", row.tokens[begin + network.first :])
        self._kept.append(ids)
        growth.begin, growth.end, growth.ids = begin, begin + len(ids), ids.buffer_info()[0]
        growth.rates = growth.passes + 8 * (MAX_GAMMA + 1 + growth.first_grade)
        growth.penalties = self._penalties.of(row).c() if row.adjusts else None
        growth.seed = row.seed
        if self._expanded:
            growth.expanded = addressof(self._expanded) + 8 * _EXPANDED * i
        if row.draws:
            if self._q is None:
                size = len(self.support.tokens) if self.support else self._penalties.vocabulary
                self._q = torch.empty(len(self._rows), MAX_GAMMA, size)
            growth.sampling = c_settings(row.request.sampling)
            growth.q = self._q.data_ptr() + 4 * i * self._q.stride(0)

    def write_to(self, addresses: Sequence[int]) -> CGrowing:
        """The structure, with addresses of memory [3, longest], int64, for each row's tokens, parents and grades."""
        for row, address in zip(self._rows, addresses, strict=True):
            row.drafted = address
        return self.c

    def grow(self, orders: Sequence[RowOrder]) -> list[Draft]:
        """Draft without a pass of the target, in one call.

        Raises:
            KernelError: a slot or column does not exist.
        """
        self.fill(orders)
        size, network = 3 * MAX_GAMMA, self._recipe.network
        memory = (c_int64 * (size * len(orders)))()
        places = [addressof(memory) + 8 * size * i for i in range(len(orders))]
        library().c.sk_grow(network and network.address, self.write_to(places))
        made = []
        for row, first in zip(self._rows, range(0, len(memory), size), strict=True):
            starts = range(first, first + size, MAX_GAMMA)
            tokens, parents, buckets = (memory[start : start + row.count] for start in starts)
            made.append((tokens, parents, buckets))
        # The memory of its distributions is that of the next draft, which may be one of the same round.
        drafts = self.drafts(made, self.c.steps)
        return [draft if draft.q is None else replace(draft, q=draft.q.clone()) for draft in drafts]

    def drafts(self, made: Sequence[tuple[list[int], list[int], list[int]]], steps: int) -> list[Draft]:
        """The draft of each row.

        Args:
            made: [B], tokens, parents and buckets of each.
            steps: draft steps that were taken.
        """
        if network := self._recipe.network:
            steps = min(steps, 1) if network.one_step else steps
            for i, row in self._stepping.items():
                network.has_read(row, self._rows[i].begin)
                if network.has_expanded:
                    network.has_expanded(row, self._expanded_of(i))
        return [given or self._draft(i, *made[i], steps) for i, given in enumerate(self._given)]

    def _expanded_of(self, i: int) -> Expanded:
        """The drafted tokens of a row that a network has read."""
        assert self._expanded
        first, count = _EXPANDED * i, self._rows[i].expanded_count
        return Expanded(*(self._expanded[start : start + count] for start in (first, first + MAX_GAMMA)))

    def _draft(self, i: int, tokens: list[int], parents: list[int], buckets: list[int], steps: int) -> Draft:
        text, network = self._recipe.text, self._recipe.network
        from_text = bool(text and buckets and buckets[0] >= text.first)
        by_network, tree = i in self._stepping and not from_text, tree_from(tuple(parents))
        maker = text if from_text else network
        drawn = by_network and bool(tokens and self._rows[i].q)
        return Draft(
            tokens,
            tree,
            self._q[i, : tree.inner] if drawn and self._q is not None else None,
            self.support,
            buckets,
            steps if by_network else 0,
            (Source(maker.name),) if maker and self._recipe.names_sources() else (),
        )


class RowPenalties:
    """`sk_penalties` of one row, and what has to live as long.

    Args:
        sampling: with bias or penalties.
        tokens: prompt and reply, which grows.
        prompt: tokens of the prompt.
        breaks: flags [V], whether the name of a token contains one of DRY's sequence breakers; None without DRY.
    """

    def __init__(
        self, sampling: Sampling, tokens: Sequence[int], prompt: int, breaks: array[int] | None = None
    ) -> None:
        self.tokens = tokens
        self._text = TextMemory()
        biased, bias = array("q", [t for t, _ in sampling.logit_bias]), array("f", [b for _, b in sampling.logit_bias])
        self._kept = (biased, bias, breaks)
        self._c = CPenalties(
            prompt=prompt,
            biased=biased.buffer_info()[0],
            bias=bias.buffer_info()[0],
            bias_count=len(bias),
            repetition=sampling.repetition_penalty,
            presence=sampling.presence_penalty,
            frequency=sampling.frequency_penalty,
            dry_multiplier=sampling.dry_multiplier if sampling.dry else 0.0,
            dry_base=sampling.dry_base,
            dry_allowed=sampling.dry_allowed_length,
            dry_last=sampling.dry_penalty_last_n,
            breaks=breaks.buffer_info()[0] if breaks else None,
        )
        self._pointer = pointer(self._c)

    def c(self) -> _Pointer[CPenalties]:
        """For the text as it is now."""
        self._text.append(self.tokens[self._text.count :])
        self._c.text, self._c.count = self._text.address, self._text.count
        return self._pointer


class PenaltiesOfRows:
    """Bias and penalties by slot; created when a row starts.

    Args:
        vocabulary: V.
    """

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self._known: dict[int, RowPenalties] = {}
        self._breaks: dict[tuple[str, ...], array[int]] = {}

    def of(self, row: SequenceState) -> RowPenalties:
        """Bias and penalties of a row."""
        known = self._known.get(row.slot)
        if known is None or known.tokens is not row.tokens:
            sampling, texts = row.request.sampling, row.request.sampling.dry_sequence_breakers
            if sampling.dry and texts not in self._breaks:
                self._breaks[texts] = array(
                    "B", [any(text in name for text in texts) for name in row.text.names(self.vocabulary)]
                )
            known = RowPenalties(sampling, row.tokens, row.reply_begin, self._breaks.get(texts))
            self._known[row.slot] = known
        return known
