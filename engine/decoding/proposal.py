"""Drafts of drafters, and the proposal that merges them into one batch for the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from specchat.engine.decoding.tree import Tree, chain
from specchat.engine.decoding.trials import Trials
from specchat.engine.device.to_device import to_device
from specchat.engine.round import Proposer
from specchat.engine.sampling.sampler import one_hot
from specchat.engine.sequence.scheduler import common_prefix

_HOST = torch.device("cpu")
Offers = Callable[[int], tuple[Sequence[int], Tree]]
"""For a γ, the confidence bucket of each token and the tree that a drafter will draft, if known before drafting."""


@dataclass(frozen=True, slots=True)
class Support:
    """Subset of V' tokens of the vocabulary that a drafter draws from."""

    tokens: Tensor
    """[V'], int64: token ids."""
    places: Tensor
    """[V], int64: index of each token in `tokens`; 0 for tokens outside of it."""

    @classmethod
    def of(cls, tokens: Tensor, vocabulary: int) -> Support:
        """Support from its token ids [V'] and V."""
        places = torch.zeros(vocabulary, dtype=torch.long, device=tokens.device)
        places[tokens] = torch.arange(len(tokens), device=tokens.device)
        return cls(tokens, places)


class Source(NamedTuple):
    """A draft that became part of a combined one."""

    name: str
    """Of the drafter or the draft model."""
    tokens: Sequence[int] | None = None
    """Its chain; None if it is the whole draft."""

    def proposer(self, drafted: Sequence[int]) -> Proposer:
        """For the round's record, from the accepted tokens followed by the first choices after them."""
        if self.tokens is None:
            return Proposer(self.name, len(drafted), len(drafted))
        return Proposer(self.name, len(self.tokens), common_prefix(self.tokens, drafted))


@dataclass(slots=True)
class Draft:
    """Drafted tokens of one drafter for a batch of rows.

    A drafter on the host gives `tokens` as lists; one on the device gives a tensor [B, K].
    """

    tokens: list[list[int]] | Tensor
    lengths: list[int]
    """Number of tokens drafted, per row."""
    q: Tensor | None = None
    """[B, γ, V], float32: distributions that chains were drawn from; None if all are one-hot."""
    buckets: list[list[int]] | None = None
    """Confidence bucket of each token, one of `DrafterProfile.buckets`; None if the drafter has none."""
    trees: Sequence[Tree | None] | None = None
    """Tree per row, None for a chain; None if all are chains. Without `support` and `trials`, all of their tokens are
    certain."""
    tree_q: Tensor | None = None
    """[B, I, V'], float32: draft distribution behind each of the first I nodes of trees, or the sources of `trials`; 0
    for greedy rows, None if all are greedy."""
    support: Support | None = None
    """The V' tokens that trees are drawn from."""
    trials: Sequence[Trials | None] | None = None
    """Of trees that were merged, whose distributions are over all V; None for other rows, and if there are none. Such
    a tree may not be cut: its shape tells of draws."""
    steps: int | None = None
    """Draft steps taken; None for as many as the longest draft asked for."""
    sources: Sequence[Sequence[Source]] | None = None
    """Per row, the drafts that it was combined from; None if the drafter does not combine any."""

    def positions(self, row: int) -> int:
        """The positions that one row's draft is for."""
        tree = self.trees[row] if self.trees else None
        return tree.depth if tree else self.lengths[row]

    def check(self, most: Sequence[int]) -> None:
        """Check that no row's draft is for more positions than these: what is beyond them may not fit.

        Raises:
            ValueError: one is.
        """
        for row, gamma in enumerate(most):
            if (found := self.positions(row)) > gamma:
                raise ValueError(f"it drafted for {found} positions where {gamma} were asked for")

    def shortened(self, lengths: Sequence[int | None]) -> Draft:
        """This draft cut to the first `lengths` tokens per row; None leaves a row unchanged."""
        kept = [n if limit is None else min(n, limit) for n, limit in zip(self.lengths, lengths, strict=True)]
        if kept == self.lengths:
            return self
        tokens = self.tokens
        if isinstance(tokens, list):
            tokens = [row[:n] for row, n in zip(tokens, kept, strict=True)]
        trees = self.trees and [tree and tree.first(n) for tree, n in zip(self.trees, kept, strict=True)]
        return replace(self, tokens=tokens, lengths=kept, trees=trees)


@dataclass(frozen=True)
class Proposal:
    """Drafts of all rows of a batch, for the target to verify."""

    drafted: list[list[int]] | Tensor
    """Each row's tokens, for a target on the host; or `tokens`."""
    lengths: list[int]
    q: Tensor | None
    """[B, γ, V], float32, of chains; None if all are one-hot."""
    trees: list[Tree | None] | None = None
    """Tree per row, None for a chain; None if all are chains."""
    tree_q: Tensor | None = None
    """[B, I, V'], float32, of trees; 0 for greedy rows, None if all are greedy."""
    support: Support | None = None
    """The V' tokens that trees are drawn from."""
    certain: frozenset[int] = frozenset()
    """Rows (by index) whose trees were not drawn: the q of each of their tokens is one-hot."""
    trials: list[Trials | None] | None = None
    """Of trees that were merged; None for other rows, and if there are none."""

    @cached_property
    def tokens(self) -> Tensor:
        """[B, K], int64, on the device; 0 beyond a row's length."""
        return self.drafted if isinstance(self.drafted, Tensor) else _padded(self.drafted, _HOST)

    @property
    def on_host(self) -> list[list[int]]:
        """Each row's tokens."""
        if isinstance(self.drafted, list):
            return self.drafted
        return [tokens[:n] for tokens, n in zip(self.drafted.tolist(), self.lengths, strict=True)]

    def only(self, mine: Sequence[int]) -> Proposal:
        """The proposal restricted to some rows."""
        lengths = [self.lengths[i] for i in mine]
        longest = max(lengths)
        index = to_device(mine, self.tokens.device)
        certain = frozenset(k for k, i in enumerate(mine) if i in self.certain)
        return Proposal(
            self.tokens[index, :longest],
            lengths,
            None if self.q is None else self.q[index, :longest],
            None if self.trees is None else [self.trees[i] for i in mine],
            None if self.tree_q is None else self.tree_q[index],
            self.support,
            certain,
            None if self.trials is None else [self.trials[i] for i in mine],
        )

    @property
    def whole_trees(self) -> list[Tree] | None:
        """Tree per row, chains included; None if all are chains."""
        if self.trees is None:
            return None
        return [tree or chain(length) for tree, length in zip(self.trees, self.lengths, strict=True)]


def merge(drafts: Sequence[tuple[list[int], Draft]], rows: int, device: torch.device) -> Proposal:
    """Merge drafts of different drafters into one proposal for the batch.

    Args:
        drafts: pairs of row indices and the draft of these rows.
        rows: B.
        device: of the target.
    """
    if len(drafts) == 1 and drafts[0][0] == list(range(rows)):
        draft = drafts[0][1]
        drafted = draft.tokens if device == _HOST and isinstance(draft.tokens, list) else _tensor(draft, device)
        q = None if draft.q is None else draft.q[:, : max(draft.lengths)]
        trees = _trees(drafts, rows) if draft.trees else None
        trials = _trials(drafts, rows) if draft.trials else None
        certain = _certain(drafts) if trees else frozenset[int]()
        return Proposal(drafted, draft.lengths, q, trees, draft.tree_q, draft.support, certain, trials)
    lengths = [0] * rows
    tokens = torch.zeros(rows, max((max(d.lengths) for _, d in drafts), default=0), dtype=torch.long, device=device)
    q = _room([draft.q for _, draft in drafts], rows, tokens.shape[1], device)
    nodes = max((draft.tree_q.shape[1] for _, draft in drafts if draft.tree_q is not None), default=0)
    tree_q = _room([draft.tree_q for _, draft in drafts], rows, nodes, device)
    for mine, draft in drafts:
        part = _tensor(draft, device)
        index = to_device(mine, device)
        tokens[index, : part.shape[1]] = part
        if q is not None:
            q[index, : part.shape[1]] = one_hot(part, q.shape[-1]) if draft.q is None else draft.q[:, : part.shape[1]]
        if tree_q is not None and draft.tree_q is not None:
            tree_q[index, : draft.tree_q.shape[1]] = draft.tree_q
        for i, length in zip(mine, draft.lengths, strict=True):
            lengths[i] = length
    support = next((draft.support for _, draft in drafts if draft.support), None)
    trees, trials = _trees(drafts, rows), _trials(drafts, rows)
    return Proposal(tokens, lengths, q, trees, tree_q, support, _certain(drafts), trials)


def join(drafts: Sequence[tuple[list[int], Draft]], rows: int, device: torch.device) -> Draft:
    """Merge drafts as `merge` does, into one draft; each must have confidence buckets."""
    whole = merge(drafts, rows, device)
    buckets: list[list[int]] = [[] for _ in range(rows)]
    sources: list[Sequence[Source]] = [()] * rows
    for mine, draft in drafts:
        for i, each in zip(mine, draft.buckets or (), strict=True):
            buckets[i] = each
        for i, own in zip(mine, draft.sources or (), strict=False):
            sources[i] = own
    return Draft(
        whole.tokens,
        whole.lengths,
        whole.q,
        buckets,
        whole.trees,
        whole.tree_q,
        whole.support,
        whole.trials,
        sources=sources if any(sources) else None,
    )


def _certain(drafts: Sequence[tuple[list[int], Draft]]) -> frozenset[int]:
    """Rows whose trees were not drawn."""
    return frozenset(
        i
        for mine, draft in drafts
        if draft.support is None
        for i, tree, trials in zip(mine, draft.trees or (), draft.trials or [None] * len(mine), strict=False)
        if tree and trials is None
    )


def _trees(drafts: Sequence[tuple[list[int], Draft]], rows: int) -> list[Tree | None] | None:
    """The tree of each row that drafted one."""
    trees: list[Tree | None] = [None] * rows
    for mine, draft in drafts:
        for i, tree in zip(mine, draft.trees or (), strict=False):
            trees[i] = tree if tree else None
    return trees if any(trees) else None


def _trials(drafts: Sequence[tuple[list[int], Draft]], rows: int) -> list[Trials | None] | None:
    """The trials of each row whose tree was merged."""
    trials: list[Trials | None] = [None] * rows
    for mine, draft in drafts:
        for i, each in zip(mine, draft.trials or (), strict=False):
            trials[i] = each
    return trials if any(trials) else None


def _room(parts: Sequence[Tensor | None], rows: int, width: int, device: torch.device) -> Tensor | None:
    """Zeros [rows, width, V] for distributions like these; None where there are none."""
    size = next((part.shape[-1] for part in parts if part is not None), None)
    return None if size is None else torch.zeros(rows, width, size, device=device)


def _tensor(draft: Draft, device: torch.device) -> Tensor:
    """The draft's tokens [rows, N] on the device, N its longest."""
    if isinstance(draft.tokens, Tensor):
        return draft.tokens[:, : max(draft.lengths)]
    return _padded(draft.tokens, device)


def _padded(tokens: Sequence[list[int]], device: torch.device) -> Tensor:
    """[rows, N], N the longest, 0 beyond a row's own."""
    longest = max(map(len, tokens))
    padded = [row + [0] * (longest - len(row)) for row in tokens]
    found = to_device(padded, device, torch.long)
    return found if longest else found.reshape(len(padded), 0)
