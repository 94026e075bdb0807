"""Draft-model drafter: a second, smaller model with the target's vocabulary drafts chains, or trees that grow.

Trees (Miao et al. 2024, "SpecInfer"): the draft model continues several tokens of a depth in one pass, over a tree mask
in its own cache. How sure it is decides how many tokens are offered where and when drafting ends
(`engine.drafters.growing`): greedy rows offer the likeliest tokens, the others draw them without replacement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.drafter import Drafter, DrafterProfile, RowProfile
from specchat.engine.decoding.gamma.budget import Budget
from specchat.engine.decoding.proposal import Draft, Support, join
from specchat.engine.decoding.tree import BRANCHES, chain
from specchat.engine.decoding.tree_part import TreePlace
from specchat.engine.drafters.context import BuildContext
from specchat.engine.drafters.draft_cache import DraftCache
from specchat.engine.drafters.fixed_trees import may_branch
from specchat.engine.drafters.growing.drawer import Drawer, by_kernels, by_torch
from specchat.engine.drafters.growing.grow import Asked, grow
from specchat.engine.drafters.growing.growth import EXPECTED, GRADES, Growth
from specchat.engine.drafters.growing.scores import Place, Scores
from specchat.engine.drafters.model_steps import ModelSteps
from specchat.engine.sampling.rng import Stream, uniforms
from specchat.engine.sequence.sequence import SequenceState

CHAINS, TREES = "model", "model-tree"
_FIRST, _LATER = 2 * GRADES, 2 * GRADES + 1
"""Buckets of a tree drafter's chains: the first token, and any later one."""


class ModelDrafter(Drafter):
    """A draft model that drafts chains; trees if it is given a support.

    Draft steps of chains are one forward pass for all rows; tokens and distributions stay on the device. A tree drafter
    drafts chains for rows with penalties or lenience.

    Args:
        model: the draft model, with as many slots and columns as the target.
        cache: content of its KV cache.
        steps: its draft steps.
        support: the tokens that trees are drawn from, all V; None for chains. Trees need a CPU.
        branches: whether trees may have branches; else they are chains.
    """

    def __init__(
        self,
        model: Backend,
        cache: DraftCache,
        steps: ModelSteps,
        support: Support | None = None,
        *,
        branches: bool = True,
    ) -> None:
        self.name = TREES if support else CHAINS
        if support:
            self.profile = DrafterProfile(range(2 * GRADES + 2), expected_rates=EXPECTED)
        self._model = model
        self._cache = cache
        self._steps = steps
        self._support = support
        self._branches = branches
        self._draw = by_kernels if model.capabilities.packed else by_torch
        self._requested: dict[str, int] = {}
        """By request: γ of the chain being verified."""
        self._drafted: dict[str, Growth] = {}
        """By request: the tree being verified."""

    @property
    def graph_bytes(self) -> int:  # type: ignore[override]
        """Memory of distributions."""
        return 0 if self._support else self._steps.graph_bytes

    def admit(self, row: SequenceState) -> RowProfile:
        """Note how much of the prompt the slot still holds from an earlier turn."""
        self._cache.admit(row)
        if self._support is None:
            return RowProfile()
        if self._branches and may_branch(row):
            return RowProfile(grows=True)
        return RowProfile(lambda gamma: (_chain_buckets(gamma), chain(gamma)))

    def prefill(self, rows: Sequence[SequenceState]) -> None:
        """Feed one chunk."""
        self._cache.prefill(rows)

    def propose(
        self, rows: Sequence[SequenceState], gammas: Sequence[int], budgets: Sequence[Budget | None] = ()
    ) -> Draft:
        """Chains and trees of up to `gammas[i]` positions."""
        if self._support is None:
            return self._chains(rows, gammas)
        costs = budgets or [None] * len(rows)
        growing = [i for i, row in enumerate(rows) if self._branches and may_branch(row)]
        straight = [i for i in range(len(rows)) if i not in growing]
        parts: list[tuple[list[int], Draft]] = []
        if growing:
            parts.append((growing, self._trees([Asked(rows[i], gammas[i], costs[i]) for i in growing], self._support)))
        if straight:
            lengths = [gammas[i] for i in straight]
            draft = self._chains([rows[i] for i in straight], lengths)
            parts.append((straight, replace(draft, buckets=[_chain_buckets(length) for length in lengths])))
        return parts[0][1] if len(parts) == 1 else join(parts, len(rows), self._model.device)

    def on_accepted(self, row: SequenceState, emitted: Sequence[int]) -> None:
        """Keep what was accepted and has been fed; the last token of a chain never was."""
        before = len(row.tokens) - len(emitted)
        growth = self._drafted.pop(row.request.request_id, None)
        requested = self._requested.pop(row.request.request_id, 0)
        if growth is not None:
            columns = growth.columns_along(emitted)
            if columns != list(range(1, len(columns) + 1)):
                self._model.cache.move(row.slot, [before - 1 + column for column in columns], before)
            self._cache.keep(row, before + len(columns))
        elif requested:
            self._cache.keep(row, before + min(len(emitted), requested) - 1)
        else:
            self._cache.update(row)

    def release(self, row: SequenceState) -> None:
        """Leave the slot's content to the next turn."""
        self._drafted.pop(row.request.request_id, None)
        self._requested.pop(row.request.request_id, None)
        self._cache.release(row)

    def _chains(self, rows: Sequence[SequenceState], gammas: Sequence[int]) -> Draft:
        """`max(gammas)` draft steps for all rows; q is kept unless every row is greedy."""
        lead, steps = self._cache.catch_up(rows), max(gammas)
        u = uniforms([r.seed for r in rows], [r.rounds for r in rows], Stream.DRAFT, steps)
        tokens, q = self._steps.draft(rows, lead, steps, u)
        for row, gamma in zip(rows, gammas, strict=True):
            self._requested[row.request.request_id] = gamma
        return Draft(tokens, [chain(gamma) for gamma in gammas], q)

    @torch.inference_mode()
    def _trees(self, asked: Sequence[Asked], support: Support) -> Draft:
        """Trees that grow step by step, as long as that pays."""
        rows = [each.row for each in asked]
        logits = self._steps.after_last(rows, self._cache.catch_up(rows))
        known = range(len(support.tokens))
        draft, growths = grow(asked, _scores(logits, len(rows)), self._continue, known, support, self._drawer)
        for row, growth in zip(rows, growths, strict=True):
            self._drafted[row.request.request_id] = growth
        return draft

    def _continue(self, places: Sequence[Place]) -> Scores:
        """Score what follows drafted tokens."""
        fed = [
            TreePlace(place.row.slot, len(place.row.tokens) - 1, place.token, place.column, place.path)
            for place in places
        ]
        return _scores(self._steps.fit(self._model.extend(fed)), 1)

    def _drawer(self, row: SequenceState, q: Tensor) -> Drawer:
        return Drawer(row, q, self._draw)


def _chain_buckets(length: int) -> list[int]:
    return [_FIRST, *[_LATER] * (length - 1)][:length]


def _scores(logits: Tensor, rows: int) -> Scores:
    """Scores of places [n, V], with the likeliest tokens of each; no share where a logit is not a number."""
    logits = logits.float().contiguous()
    best = logits.topk(BRANCHES, -1)
    shares = (best.values - logits.logsumexp(-1, keepdim=True)).exp_().nan_to_num_(0.0)
    return Scores(logits.view(rows, -1, logits.shape[-1]), best.indices.int().cpu().numpy(), shares.cpu().numpy())


@dataclass(frozen=True, slots=True)
class Member:
    """A draft model, with what its drafters share."""

    name: str
    """Unique among the draft models."""
    cache: DraftCache
    steps: ModelSteps
    model: Backend


def members(context: BuildContext) -> list[Member]:
    """The draft models of an engine."""

    def make() -> list[Member]:
        names = numbered([name for name, _ in context.draft_models])
        return [
            Member(
                name,
                DraftCache(runner, context.prefill_chunk),
                ModelSteps(runner, context.target.penalties, context.target.vocabulary),
                runner,
            )
            for name, (_, runner) in zip(names, context.draft_models, strict=True)
        ]

    return context.shared("draft models", make)


def chains_of(context: BuildContext) -> ModelDrafter:
    """The chain drafter of the first draft model."""
    drafter = context.drafters[CHAINS]
    assert isinstance(drafter, ModelDrafter)
    return drafter


def whole_support(context: BuildContext) -> Support:
    """All tokens of the target's vocabulary."""
    size = context.target.vocabulary
    return Support.of(torch.arange(size, device=context.target.device), size)


def numbered(names: Sequence[str]) -> list[str]:
    """The names, with a number after names that occur several times."""
    return [
        f"{name} ({names[: place + 1].count(name)})" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    ]


def build(context: BuildContext, name: str) -> ModelDrafter:
    """The drafter for an engine: trees for `model-tree`, with branches if the target's passes can have some."""
    first = members(context)[0]
    support = whole_support(context) if name == TREES else None
    return ModelDrafter(first.model, first.cache, first.steps, support, branches=context.target.capabilities.trees)
