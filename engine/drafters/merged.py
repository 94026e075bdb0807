"""Merged drafter: several draft models draft a chain each, and one prefix tree of them is verified.

The merge-based construction and multi-step speculative sampling of Miao et al. 2024, "SpecInfer" (Stratos, "Speculative
Decoding", section 2.1). Behind an accepted token the drafts that brought it are tried in random order, each with the
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

from specchat.engine.backends.runner import Runner
from specchat.engine.decoding.drafter import Drafter
from specchat.engine.decoding.gamma.budget import Budget
from specchat.engine.decoding.proposal import Draft, Offers, join
from specchat.engine.decoding.tree import BRANCHES, LONGEST, chain
from specchat.engine.drafters.draft_cache import DraftCache
from specchat.engine.drafters.draft_model import ModelDrafter
from specchat.engine.drafters.fixed_trees import may_branch
from specchat.engine.drafters.model_steps import ModelSteps
from specchat.engine.drafters.prefix_tree import PrefixTree
from specchat.engine.request import MAX_GAMMA
from specchat.engine.round import Proposer
from specchat.engine.sampling.rng import Stream, uniforms
from specchat.engine.sequence.scheduler import common_prefix
from specchat.engine.sequence.sequence import SequenceState

MOST_MODELS = BRANCHES
"""As many trials as there may be for a position."""


@dataclass(frozen=True, slots=True)
class Member:
    """One of the draft models."""

    name: str
    """Its own, that no other member has."""
    cache: DraftCache
    """What it holds of every row."""
    steps: ModelSteps
    model: Runner


class MergedDrafter(Drafter):
    """Several draft models at once; chains of the first, where a row's logits or its acceptance are special.

    The host has to know the tokens to merge them: on a GPU a round waits once more.

    Args:
        members: two to `MOST_MODELS` draft models.
        chains: drafts chains with the first.
        device: of the draft models.
        branches: whether drafts may be trees.
    """

    name = "merged"

    def __init__(
        self, members: Sequence[Member], chains: ModelDrafter, device: torch.device, *, branches: bool = True
    ) -> None:
        self._members = members
        self._chains = chains
        self._device = device
        self._branches = branches
        count = len(members)
        self.buckets = range(2 * count)
        """The first draft model that has a token, apart for the first position."""
        self.later = tuple(bucket for bucket in self.buckets if bucket % count)
        self._drafted: dict[str, list[list[int]]] = {}
        """By request, the chains under judgement."""

    @property
    def graph_bytes(self) -> int:
        """Memory of distributions, those of the first draft model not counted again."""
        return sum(member.steps.graph_bytes for member in self._members[1:])

    def capture(self) -> None:
        """The steps of all but the first draft model, which are captured for its own chains, and what lets one whose
        draft was refused catch up."""
        for member in self._members:
            member.model.capture()
        for member in self._members[1:]:
            member.steps.capture()

    def admit(self, row: SequenceState) -> None:
        """A row starts with all of them."""
        for member in self._members:
            member.cache.admit(row)

    def unread(self, row: SequenceState) -> int:
        """What the caches lack of those that draft for the row."""
        return sum(member.cache.unread(row) for member in self._of(row))

    def read(self, rows: Sequence[SequenceState]) -> None:
        """Feed one chunk to the first that lacks some."""
        member = next(each for each in self._of(rows[0]) if each.cache.unread(rows[0]))
        member.cache.read([row for row in rows if member in self._of(row) and member.cache.unread(row)])

    def grows(self, row: SequenceState) -> bool:
        """Wherever it may branch: it decides itself for how many positions it drafts."""
        return self._branches and may_branch(row)

    def offers(self, row: SequenceState) -> Offers | None:
        """A chain; what merging leaves is not known before."""
        return None if self.grows(row) else lambda gamma: (self._of_chain(gamma), chain(gamma))

    def propose(
        self, rows: Sequence[SequenceState], gammas: Sequence[int], budgets: Sequence[Budget | None] = ()
    ) -> Draft:
        """Trees of up to `gammas[i]` positions, and chains."""
        costs = budgets or [None] * len(rows)
        merging = [i for i, row in enumerate(rows) if self.grows(row)]
        straight = [i for i in range(len(rows)) if i not in merging]
        parts: list[tuple[list[int], Draft]] = []
        if merging:
            positions = [self._positions(gammas[i], costs[i]) for i in merging]
            parts.append((merging, self._merged([rows[i] for i in merging], positions)))
        if straight:
            lengths = [gammas[i] for i in straight]
            draft = self._chains.propose([rows[i] for i in straight], lengths)
            buckets = [self._of_chain(length) for length in lengths]
            parts.append((straight, replace(draft, buckets=buckets, steps=max(lengths))))
        if len(parts) == 1:
            return parts[0][1]
        return replace(join(parts, len(rows), self._device), steps=max(draft.steps or 0 for _, draft in parts))

    def proposers(self, row: SequenceState, drafted: Sequence[int]) -> tuple[Proposer, ...]:
        """All of them, or the first where it drafted a chain alone."""
        chains = self._drafted.get(row.request.request_id)
        if chains is None:
            return (Proposer(self._members[0].name, len(drafted), len(drafted)),)
        return tuple(
            Proposer(member.name, len(chain), common_prefix(chain, drafted))
            for member, chain in zip(self._members, chains, strict=True)
        )

    def observe(self, row: SequenceState, emitted: Sequence[int]) -> None:
        """Keep what each has drafted rightly: the last token of its chain was never fed."""
        chains = self._drafted.pop(row.request.request_id, None)
        if chains is None:
            self._chains.observe(row, emitted)
            return
        before = len(row.tokens) - len(emitted)
        for member, drafted in zip(self._members, chains, strict=True):
            right = common_prefix(drafted, emitted)
            member.cache.keep(row, before + min(right, len(drafted) - 1))

    def release(self, row: SequenceState) -> None:
        """Leave the slot's content to the next turn."""
        self._drafted.pop(row.request.request_id, None)
        self._chains.release(row)
        for member in self._members[1:]:
            member.cache.release(row)

    @torch.inference_mode()
    def _merged(self, rows: Sequence[SequenceState], positions: Sequence[int]) -> Draft:
        count = len(self._members)
        lengths = [shares(each, count) for each in positions]
        steps = [max(each) for each in zip(*lengths, strict=True)]
        first = np.cumsum([0, *steps]).tolist()
        tokens, q = self._draw(rows, steps)
        orders = _orders(rows, max(positions), count)
        drafted = tokens.cpu().tolist()
        greedy = [row.request.sampling.greedy for row in rows]
        merged: list[PrefixTree] = []
        for i, row in enumerate(rows):
            chains = [drafted[i][start : start + n] for start, n in zip(first, lengths[i], strict=False)]
            self._drafted[row.request.request_id] = chains
            merged.append(PrefixTree.of(chains))
        return Draft(
            [each.tokens for each in merged],
            [len(each.tokens) for each in merged],
            buckets=[self._graded(each) for each in merged],
            trees=[each.tree for each in merged],
            tree_q=q,
            trials=[None if greedy[i] else each.trials(orders[i], first) for i, each in enumerate(merged)],
            steps=max(positions),
        )

    def _draw(self, rows: Sequence[SequenceState], steps: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """The chains [B, K] of all draft models, one beside the other, and what they were drawn from [B, K, V].

        Each has uniforms of its own: their draws must not depend on each other.
        """
        seeds, rounds = [row.seed for row in rows], [row.rounds for row in rows]
        u = uniforms(seeds, rounds, Stream.DRAFT, len(self._members) * MAX_GAMMA)
        tokens: list[Tensor] = []
        distributions: list[Tensor] = []
        for number, (member, length) in enumerate(zip(self._members, steps, strict=True)):
            lead, begin = member.cache.catch_up(rows), number * MAX_GAMMA
            drawn, q = member.steps.draft(rows, lead, length, u[:, begin : begin + length])
            tokens.append(drawn)
            if q is not None:
                distributions.append(q)
        return torch.cat(tokens, dim=1), torch.cat(distributions, dim=1) if distributions else None

    def _positions(self, gamma: int, budget: Budget | None) -> int:
        """For how many positions to draft: as many as pay by what has been learnt, where that may be used."""
        longest, count = min(gamma, LONGEST), len(self._members)
        if budget is None:
            return longest
        best, most, gained, chance = 1, -inf, 0.0, 1.0
        for depth in range(1, longest + 1):
            lengths, later = shares(depth, count), count * (depth > 1)
            chance *= min(1.0, sum(budget.rate(later + k) for k in range(count) if lengths[k] >= depth))
            gained += chance
            worth = gained - budget.passes[sum(lengths)] - budget.step * (depth - 1)
            if worth > most:
                best, most = depth, worth
        return best

    def _of(self, row: SequenceState) -> Sequence[Member]:
        """Those that draft for a row."""
        return self._members if self.grows(row) else self._members[:1]

    def _graded(self, merged: PrefixTree) -> list[int]:
        owners, depths = merged.owners(), merged.tree.depths[1:]
        return [k + len(self._members) * (depth > 1) for k, depth in zip(owners, depths, strict=True)]

    def _of_chain(self, length: int) -> list[int]:
        return [0, *[len(self._members)] * (length - 1)][:length]


def shares(positions: int, models: int) -> list[int]:
    """Tokens that each draft model drafts: the first for all positions, the others as far as a pass has room for them.

    Args:
        positions: at most `LONGEST`.
        models: at least 2.
    """
    others = (MAX_GAMMA - LONGEST) // (models - 1)
    return [positions, *[min(positions, others)] * (models - 1)]


def _orders(rows: Sequence[SequenceState], positions: int, models: int) -> list[list[list[int]]]:
    """By row and position, a random order of the draft models."""
    u = uniforms([row.seed for row in rows], [row.rounds for row in rows], Stream.ORDER, positions * models)
    orders: list[list[list[int]]] = u.reshape(len(rows), positions, models).argsort(axis=-1).tolist()
    return orders
