"""Draft-model drafter whose drafts are token trees that grow (Miao et al. 2024, "SpecInfer").

The draft model goes on from several tokens of a depth in one pass, over a tree mask in its own cache. What it is sure
of decides how many tokens are offered where and when drafting ends, within what verifying and drafting cost
(`engine.drafters.growing`): greedy rows offer the likeliest tokens, the others draw them without
replacement. What was accepted moves to its place in the cache, as in the target's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specchat.engine.backends.quantized_runner import QuantizedRunner
from specchat.engine.backends.runner import Runner
from specchat.engine.decoding.drafter import Drafter
from specchat.engine.decoding.gamma.budget import Budget
from specchat.engine.decoding.proposal import Draft, Offers, Support, join
from specchat.engine.decoding.tree import BRANCHES, chain
from specchat.engine.decoding.tree_part import TreePlace
from specchat.engine.drafters.draft_cache import DraftCache
from specchat.engine.drafters.draft_model import ModelDrafter
from specchat.engine.drafters.fixed_trees import may_branch
from specchat.engine.drafters.growing.drawer import Drawer, by_kernels, by_torch
from specchat.engine.drafters.growing.grow import Asked, grow
from specchat.engine.drafters.growing.growth import EXPECTED, GRADES, Growth
from specchat.engine.drafters.growing.scores import Place, Scores
from specchat.engine.drafters.model_steps import ModelSteps
from specchat.engine.sequence.sequence import SequenceState

_FIRST, _LATER = 2 * GRADES, 2 * GRADES + 1
"""Buckets of the tokens of chains: the first one, and any later one."""


class ModelTreeDrafter(Drafter):
    """A draft model that drafts trees; chains, where a row's logits or its acceptance are special.

    Args:
        model: the draft model, on a CPU, with as many slots and columns as the target.
        cache: what it holds of every row.
        steps: its draft steps.
        chains: drafts chains with them.
        support: the tokens that trees are drawn from, all V of them.
        branches: whether to offer several tokens for a position; else drafts are chains.
    """

    name = "model-tree"
    buckets = range(2 * GRADES + 2)
    expected = EXPECTED

    def __init__(
        self,
        model: Runner,
        cache: DraftCache,
        steps: ModelSteps,
        chains: ModelDrafter,
        support: Support,
        *,
        branches: bool = True,
    ) -> None:
        self._model = model
        self._cache = cache
        self._steps = steps
        self._chains = chains
        self._support = support
        self._branches = branches
        self._draw = by_kernels if isinstance(model, QuantizedRunner) else by_torch
        self._drafted: dict[str, Growth] = {}
        """By request: the tree under judgement."""

    def admit(self, row: SequenceState) -> None:
        """Note how much of the prompt the slot still holds from an earlier turn."""
        self._chains.admit(row)

    def unread(self, row: SequenceState) -> int:
        """What the draft cache lacks."""
        return self._chains.unread(row)

    def read(self, rows: Sequence[SequenceState]) -> None:
        """Feed one chunk."""
        self._chains.read(rows)

    def grows(self, row: SequenceState) -> bool:
        """Wherever it may branch."""
        return self._branches and may_branch(row)

    def offers(self, row: SequenceState) -> Offers | None:
        """A chain; what grows is not known before."""
        return None if self.grows(row) else lambda gamma: (_of_chain(gamma), chain(gamma))

    def propose(
        self, rows: Sequence[SequenceState], gammas: Sequence[int], budgets: Sequence[Budget | None] = ()
    ) -> Draft:
        """Trees of up to `gammas[i]` positions, and chains."""
        costs = budgets or [None] * len(rows)
        growing = [i for i, row in enumerate(rows) if self.grows(row)]
        straight = [i for i in range(len(rows)) if i not in growing]
        parts: list[tuple[list[int], Draft]] = []
        if growing:
            parts.append((growing, self._trees([Asked(rows[i], gammas[i], costs[i]) for i in growing])))
        if straight:
            lengths = [gammas[i] for i in straight]
            draft = self._chains.propose([rows[i] for i in straight], lengths)
            parts.append((straight, replace(draft, buckets=[_of_chain(length) for length in lengths])))
        return parts[0][1] if len(parts) == 1 else join(parts, len(rows), self._model.device)

    def observe(self, row: SequenceState, emitted: Sequence[int]) -> None:
        """Keep what was accepted and has been fed, at its place."""
        growth = self._drafted.pop(row.request.request_id, None)
        if growth is None:
            self._chains.observe(row, emitted)
            return
        before = len(row.tokens) - len(emitted)
        columns = growth.columns_along(emitted)
        if columns != list(range(1, len(columns) + 1)):
            self._model.cache.move(row.slot, [before - 1 + column for column in columns], before)
        self._cache.keep(row, before + len(columns))

    def release(self, row: SequenceState) -> None:
        """Leave the slot's content to the next turn."""
        self._drafted.pop(row.request.request_id, None)
        self._chains.release(row)

    @torch.inference_mode()
    def _trees(self, asked: Sequence[Asked]) -> Draft:
        rows = [each.row for each in asked]
        behind_last = self._steps.behind_last(rows, self._cache.catch_up(rows))
        known = range(len(self._support.tokens))
        draft, growths = grow(asked, _scores(behind_last, len(rows)), self._go_on, known, self._support, self._drawer)
        for row, growth in zip(rows, growths, strict=True):
            self._drafted[row.request.request_id] = growth
        return draft

    def _go_on(self, places: Sequence[Place]) -> Scores:
        """Score what follows drafted tokens."""
        fed = [
            TreePlace(place.row.slot, len(place.row.tokens) - 1, place.token, place.column, place.path)
            for place in places
        ]
        return _scores(self._steps.fit(self._model.extend(fed)), 1)

    def _drawer(self, row: SequenceState, q: Tensor) -> Drawer:
        return Drawer(row, q, self._draw)


def _of_chain(length: int) -> list[int]:
    return [_FIRST, *[_LATER] * (length - 1)][:length]


def _scores(logits: Tensor, rows: int) -> Scores:
    """Scores of places [n, V], with the likeliest tokens of each; no share where a logit is not a number."""
    logits = logits.float().contiguous()
    best = logits.topk(BRANCHES, -1)
    shares = (best.values - logits.logsumexp(-1, keepdim=True)).exp_().nan_to_num_(0.0)
    return Scores(logits.view(rows, -1, logits.shape[-1]), best.indices.int().numpy(), shares.numpy())
