"""Merged drafter: several draft models draft a chain each, and one prefix tree of them is verified.

The merge-based construction and multi-step speculative sampling of Miao et al. 2024, "SpecInfer" (Stratos, "Speculative
Decoding", section 2.1). After an accepted token the drafts that brought it are tried in random order, each with the
distribution that its own token was drawn from; a draft that agrees with another is a trial too, though its token is
scored once. How many positions are drafted for is settled before anything is drawn, so nothing that was drawn decides
which trials there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np
import torch
from torch import Tensor

from specchat.engine.cache.prefix_tree import common_prefix
from specchat.engine.decoding.draft import Budget, Draft, RowOrder, Source, draft_by_kind
from specchat.engine.decoding.drafter import LATER_RATE, Drafter, DrafterProfile, RowProfile
from specchat.engine.decoding.tree import LONGEST, Candidate, Tree, chain
from specchat.engine.drafters.build_context import BuildContext
from specchat.engine.drafters.draft_model import CHAINS, Member, ModelDrafter, chain_buckets, members
from specchat.engine.request import MAX_GAMMA
from specchat.engine.sampling.rng import Stream, uniforms
from specchat.engine.sequence.sequence import SequenceState


class MergedDrafter(Drafter):
    """Several draft models at once; chains of the first, where a row's logits or its acceptance are special.

    The host has to know the tokens to merge them: on a GPU a round waits once more.

    Args:
        members: two to `MOST_MODELS` draft models.
        chains: drafts chains with the first.
        branches: whether drafts may be trees.
    """

    name = "merged"

    def __init__(self, members: Sequence[Member], chains: ModelDrafter, *, branches: bool = True) -> None:
        self._members = members
        self._chains = chains
        self._branches = branches
        self.supports = (None,) if branches else ()
        count = len(members)
        buckets = range(2 * count)
        """The first draft model that has a token, apart for the first position."""
        self.profile = DrafterProfile(buckets, {bucket: LATER_RATE for bucket in buckets if bucket % count})
        self._drafted: dict[str, list[list[int]]] = {}
        """Chains that are being verified, by request."""

    @property
    def graph_bytes(self) -> int:  # type: ignore[override]
        """Memory of distributions, except the first draft model's, which its own drafter counts."""
        return sum(member.steps.graph_bytes for member in self._members[1:])

    def admit(self, row: SequenceState) -> RowProfile:
        """Start the row in all of them."""
        for member in self._members:
            member.cache.admit(row)
        if self._grows(row):
            return RowProfile(grows=True)
        return RowProfile(lambda gamma: (chain_buckets(gamma, 0, len(self._members)), chain(gamma)))

    def unread(self, row: SequenceState) -> int:
        """Tokens that the draft models have to be fed."""
        return sum(member.cache.unread(row) for member in self._of(row))

    def prefill(self, rows: Sequence[SequenceState]) -> None:
        """Feed one chunk to the first draft model that lacks some."""
        member = next(each for each in self._of(rows[0]) if each.cache.unread(rows[0]))
        member.cache.prefill([row for row in rows if member in self._of(row) and member.cache.unread(row)])

    def propose(self, orders: Sequence[RowOrder]) -> list[Draft]:
        """Trees of up to γ positions, and chains."""
        return draft_by_kind(orders, lambda order: self._grows(order.row), self._draft)

    def _draft(self, merging: bool, orders: Sequence[RowOrder]) -> list[Draft]:
        if merging:
            return self._merged(
                [order.row for order in orders], [self._positions(order.gamma, order.budget) for order in orders]
            )
        sources, count = (Source(self._members[0].name),), len(self._members)
        return [
            replace(draft, buckets=chain_buckets(len(draft.tree), 0, count), sources=sources)
            for draft in self._chains.propose(orders)
        ]

    def on_accepted(self, row: SequenceState, emitted: Sequence[int]) -> None:
        """Keep what each has drafted correctly: the last token of its chain was never fed."""
        chains = self._drafted.pop(row.request.request_id, None)
        if chains is None:
            self._chains.on_accepted(row, emitted)
        else:
            before = len(row.tokens) - len(emitted)
            for member, drafted in zip(self._members, chains, strict=True):
                correct = common_prefix(drafted, emitted)
                member.cache.keep(row, before + min(correct, len(drafted) - 1))

    def release(self, row: SequenceState) -> None:
        """Leave the slot's content to the next turn."""
        self._drafted.pop(row.request.request_id, None)
        self._chains.release(row)
        for member in self._members[1:]:
            member.cache.release(row)

    @torch.inference_mode()
    def _merged(self, rows: Sequence[SequenceState], positions: Sequence[int]) -> list[Draft]:
        count = len(self._members)
        lengths = [shares(each, count) for each in positions]
        steps = [max(each) for each in zip(*lengths, strict=True)]
        first = np.cumsum([0, *steps]).tolist()
        tokens, q = self._draw(rows, steps)
        orders = _orders(rows, max(positions), count)
        drafted = tokens.cpu().tolist()
        drafts = []
        for i, row in enumerate(rows):
            chains = [drafted[i][start : start + n] for start, n in zip(first, lengths[i], strict=False)]
            self._drafted[row.request.request_id] = chains
            merged = PrefixTree.of(chains)
            drafts.append(
                Draft(
                    merged.tokens,
                    merged.with_tests(orders[i], first) if row.draws else merged.tree,
                    q[i] if q is not None and row.draws else None,
                    buckets=self._graded(merged),
                    steps=max(positions),
                    sources=[Source(each.name, part) for each, part in zip(self._members, chains, strict=True)],
                )
            )
        return drafts

    def _draw(self, rows: Sequence[SequenceState], steps: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """The chains [B, K] of all draft models, one next to the other, and what they were drawn from [B, K, V].

        Each has its own uniforms: their draws must not depend on each other.
        """
        drafts = [
            member.steps.draft(rows, member.cache.catch_up(rows), length, number * MAX_GAMMA)
            for number, (member, length) in enumerate(zip(self._members, steps, strict=True))
        ]
        tokens, distributions = [drawn for drawn, _ in drafts], [q for _, q in drafts if q is not None]
        return torch.cat(tokens, dim=1), torch.cat(distributions, dim=1) if distributions else None

    def _positions(self, gamma: int, budget: Budget) -> int:
        """For how many positions to draft: as many as pay by what has been learnt, where that may be used."""
        longest, count = min(gamma, LONGEST), len(self._members)
        if budget.repeatable:
            return longest
        best, most, gained, chance = 1, -inf, 0.0, 1.0
        for depth in range(1, longest + 1):
            lengths, later = shares(depth, count), count * (depth > 1)
            chance *= min(1.0, sum(budget.rates[later + k] for k in range(count) if lengths[k] >= depth))
            gained += chance
            worth = gained - budget.passes[sum(lengths)] - budget.step * (depth - 1)
            if worth > most:
                best, most = depth, worth
        return best

    def _grows(self, row: SequenceState) -> bool:
        """Whether its chains are merged: then it decides itself for how many positions it drafts."""
        return self._branches and row.request.sampling.lossless

    def _of(self, row: SequenceState) -> Sequence[Member]:
        """The draft models that draft for a row."""
        return self._members if self._grows(row) else self._members[:1]

    def _graded(self, merged: PrefixTree) -> list[int]:
        owners, depths = merged.owners(), merged.tree.depths[1:]
        return [k + len(self._members) * (depth > 1) for k, depth in zip(owners, depths, strict=True)]


def shares(positions: int, models: int) -> list[int]:
    """Tokens that each draft model drafts: the first for all positions, the others for as many as a pass has room for.

    Args:
        positions: at most `LONGEST`.
        models: at least 2.
    """
    others = (MAX_GAMMA - LONGEST) // (models - 1)
    return [positions, *[min(positions, others)] * (models - 1)]


def _orders(rows: Sequence[SequenceState], positions: int, models: int) -> list[list[list[int]]]:
    """A random order of the draft models for each row and position."""
    u = uniforms([row.seed for row in rows], [row.rounds for row in rows], Stream.ORDER, positions * models)
    orders: list[list[list[int]]] = u.reshape(len(rows), positions, models).argsort(axis=-1).tolist()
    return orders


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """Tree of merged chains, whose first tokens are the first chain."""

    tokens: list[int]
    """[K]"""
    tree: Tree
    paths: list[list[int]]
    """Per chain, the nodes of its tokens."""

    @classmethod
    def of(cls, chains: Sequence[Sequence[int]]) -> PrefixTree:
        """Merge chains of tokens."""
        tokens: list[int] = []
        parents: list[int] = []
        known: dict[tuple[int, int], int] = {}
        paths: list[list[int]] = []
        for drafted in chains:
            node, path = 0, list[int]()
            for token in drafted:
                if (node, token) not in known:
                    tokens.append(token)
                    parents.append(node)
                    known[node, token] = len(tokens)
                node = known[node, token]
                path.append(node)
            paths.append(path)
        return cls(tokens, Tree(tuple(parents)), paths)

    def owners(self) -> list[int]:
        """[K], the first chain that each token is of."""
        owners = [0] * len(self.tokens)
        for number in reversed(range(len(self.paths))):
            for node in self.paths[number]:
                owners[node - 1] = number
        return owners

    def with_tests(self, orders: Sequence[Sequence[int]], first: Sequence[int]) -> Tree:
        """The tree with one candidate for each chain that has a token at a position.

        Args:
            orders: by position, the chains in the order in which their tokens are tried there.
            first: by chain, index of its first token's distribution; distributions of its further tokens follow.
        """
        tests: list[list[Candidate]] = [[] for _ in range(len(self.tokens) + 1)]
        for place, order in enumerate(orders):
            for number in order:
                path = self.paths[number]
                if place < len(path):
                    parent = path[place - 1] if place else 0
                    tests[parent].append(Candidate(path[place], first[number] + place))
        return Tree(self.tree.parents, tuple(map(tuple, tests)))


def build(context: BuildContext, name: str) -> MergedDrafter:  # noqa: ARG001
    """The drafter for an engine."""
    return MergedDrafter(members(context), context.drafters[CHAINS], branches=context.target.capabilities.trees)
