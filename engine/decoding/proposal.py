"""Drafts of drafters, and the proposal that merges them into one batch for the target.

Chains and trees share one layout: node 0 is a row's last token, node k its k-th drafted token, and `q[b, s]` is the
distribution with index s that candidates of row b name as their source (`Tree.candidates`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specchat.engine.cache.prefix_tree import common_prefix
from specchat.engine.decoding.tree import Tree, chain
from specchat.engine.device.device import to_device
from specchat.engine.kernels.growing_trees import GrowingTrees, GrownTree
from specchat.engine.round import Proposer

_HOST = torch.device("cpu")
Offers = Callable[[int], tuple[Sequence[int], Tree]]
"""For a γ, the confidence bucket of each token and the tree that a drafter will draft, if known before drafting."""


class Support(NamedTuple):
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

    def spread(self, q: Tensor) -> Tensor:
        """[…, V] with the probabilities [..., V'] at their tokens and 0 elsewhere."""
        whole = q.new_zeros(*q.shape[:-1], len(self.places))
        whole[..., self.tokens] = q
        return whole


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


class Growing(Protocol):
    """Trees of all rows of a batch that are drafted in the pass that verifies them."""

    trees: GrowingTrees

    def now(self) -> Draft:
        """Grow the trees without a pass; the draft."""

    def made(self, found: Sequence[GrownTree], steps: int) -> Draft:
        """The draft from trees that a pass has grown, in so many draft steps."""


@dataclass(slots=True)
class Draft:
    """Drafted tokens for a batch of rows.

    A drafter on the host gives `tokens` as lists; one on the device gives a tensor [B, K].
    """

    tokens: list[list[int]] | Tensor
    trees: list[Tree]
    """Tree of each row's tokens; a chain is `chain(length)`."""
    q: Tensor | None = None
    """[B, I, V'], float32: distributions that candidates were drawn from; None if all tokens are certain (one-hot)."""
    support: Support | None = None
    """The V' tokens that `q` is over; None if it is over the whole vocabulary."""
    drawn: list[bool] | None = None
    """Rows whose tokens were drawn from `q`; None if all were, or if there is no `q`."""
    buckets: list[list[int]] | None = None
    """Confidence bucket of each token, one of `Drafter.buckets`; None if the drafter has none."""
    steps: int | None = None
    """Draft steps taken; None for as many as the longest requested γ."""
    sources: Sequence[Sequence[Source]] | None = None
    """Per row, the drafts that it was combined from; None if the drafter does not combine any."""
    growing: Growing | None = None
    """Of a deferred draft, which `Backend.score` makes; tokens and trees are empty until then."""
    free: Sequence[bool] = ()
    """Per row, whether its draft took no draft step; empty if all took the same number."""

    @classmethod
    def deferred(cls, growing: Growing, rows: int, support: Support | None = None) -> Draft:
        """Drafts of so many rows that are made in the pass that verifies them."""
        nothing: list[list[int]] = [[] for _ in range(rows)]
        return cls(nothing, [chain(0)] * rows, support=support, buckets=nothing, growing=growing)

    @classmethod
    def of_chains(
        cls,
        tokens: list[list[int]],
        buckets: list[list[int]] | None = None,
        sources: Sequence[Sequence[Source]] | None = None,
    ) -> Draft:
        """Chains of certain tokens, one list per row."""
        return cls(tokens, [chain(len(each)) for each in tokens], buckets=buckets, sources=sources)

    @property
    def lengths(self) -> list[int]:
        """Number of drafted tokens, per row."""
        return [len(tree) for tree in self.trees]

    def settled(self) -> Draft:
        """The draft with its tokens: a deferred one is made now."""
        return self if self.growing is None else self.growing.now()

    def trimmed(self) -> Draft:
        """The draft without distributions that no token was drawn from."""
        if self.q is None:
            return self
        return replace(self, q=self.q[:, : max(tree.inner for tree in self.trees)])

    def check(self, most: Sequence[int]) -> None:
        """Check that no row's draft covers more positions than `most`, as there may be no room for them.

        Raises:
            ValueError: one does.
        """
        for tree, gamma in zip(self.trees, most, strict=True):
            if tree.depth > gamma:
                raise ValueError(f"it drafted for {tree.depth} positions where {gamma} were asked for")

    def shortened(self, lengths: Sequence[int | None]) -> Draft:
        """This draft cut to the first `lengths` tokens per row; None leaves a row unchanged."""
        kept = [n if limit is None else min(n, limit) for n, limit in zip(self.lengths, lengths, strict=True)]
        if kept == self.lengths:
            return self
        tokens = self.tokens
        if isinstance(tokens, list):
            tokens = [row[:n] for row, n in zip(tokens, kept, strict=True)]
        trees = [tree if n == len(tree) else tree.first(n) for tree, n in zip(self.trees, kept, strict=True)]
        return replace(self, tokens=tokens, trees=trees)


@dataclass
class Proposal:
    """Drafts of all rows of a batch, for the target to verify."""

    drafted: list[list[int]] | Tensor
    """Each row's tokens, for a target on the host; or `tokens`."""
    trees: list[Tree]
    q: Tensor | None = None
    """[B, I, V'], float32; None if all tokens are certain."""
    support: Support | None = None
    """The V' tokens that `q` is over; None if it is over the whole vocabulary."""
    drawn: list[bool] | None = None
    """Rows whose tokens were drawn from `q`; None if there is no `q`."""
    growing: Growing | None = None
    """Drafts that `Backend.score` grows; until then there are no tokens."""
    grown: Draft | None = None
    """Result of `growing`; None before it has run."""
    growing_s: float = 0.0
    """Seconds that growing took."""
    fault: Exception | None = None
    """Why no draft has grown, if growing failed; the rows were scored without drafts."""
    rounds: int = 1
    """Rounds that `Backend.score` may run one after the other, each with a draft like this one, if it can."""
    head: int | None = None
    """Address of the kernels' head that reads the hidden states between them."""
    ends: Collection[int] = ()
    """Tokens that end a reply, and with it those rounds."""

    def settle(self, grown: Draft, seconds: float) -> None:
        """Take the drafts that the pass has grown."""
        self.drafted, self.trees, self.q = grown.tokens, grown.trees, grown.q
        self.drawn = _drawn(grown) if grown.q is not None else None
        self.grown, self.growing_s = grown, seconds

    @property
    def lengths(self) -> list[int]:
        """Number of drafted tokens, per row."""
        return [len(tree) for tree in self.trees]

    @property
    def branches(self) -> bool:
        """Whether some row has several candidates for a position."""
        return any(tree.branches for tree in self.trees)

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
        trees = [self.trees[i] for i in mine]
        index = to_device(mine, self.tokens.device)
        return Proposal(
            self.tokens[index, : max(map(len, trees))],
            trees,
            None if self.q is None else self.q[index, : max(tree.inner for tree in trees)],
            self.support,
            self.drawn and [self.drawn[i] for i in mine],
        )


def merge(drafts: Sequence[tuple[list[int], Draft]], rows: int, device: torch.device) -> Proposal:
    """Merge drafts of different drafters into one proposal for the batch.

    Args:
        drafts: pairs of row indices and the draft of these rows.
        rows: B.
        device: of the target.
    """
    if len(drafts) == 1 and drafts[0][0] == list(range(rows)):
        draft = drafts[0][1]
        if draft.growing is not None:
            return Proposal(draft.tokens, draft.trees, support=draft.support, growing=draft.growing)
        drafted = draft.tokens if device == _HOST and isinstance(draft.tokens, list) else _tensor(draft, device)
        return Proposal(drafted, draft.trees, draft.q, draft.support, _drawn(draft) if draft.q is not None else None)
    trees, drawn = [chain(0)] * rows, [False] * rows
    if device == _HOST and all(draft.q is None and isinstance(draft.tokens, list) for _, draft in drafts):
        lists: list[list[int]] = [[] for _ in trees]  # calls of torch would take as long as a good part of a short pass
        for mine, draft in drafts:
            for i, own, tree in zip(mine, draft.tokens, draft.trees, strict=True):
                lists[i], trees[i] = own, tree
        return Proposal(lists, trees)
    tokens = torch.zeros(rows, max((max(d.lengths) for _, d in drafts), default=0), dtype=torch.long, device=device)
    support, parts = _common_support(drafts)
    q = None
    if parts:
        most, size = max(part.shape[1] for _, part in parts), parts[0][1].shape[-1]
        q = torch.zeros(rows, most, size, device=device)
        for mine, part in parts:
            q[to_device(mine, device), : part.shape[1]] = part
    for mine, draft in drafts:
        own = _tensor(draft, device)
        tokens[to_device(mine, device), : own.shape[1]] = own
        for i, tree, is_drawn in zip(mine, draft.trees, _drawn(draft), strict=True):
            trees[i], drawn[i] = tree, is_drawn
    return Proposal(tokens, trees, q, support, None if q is None else drawn)


def join(drafts: Sequence[tuple[list[int], Draft]], rows: int, device: torch.device) -> Draft:
    """Merge drafts that have been made as `merge` does, into one draft; each must have confidence buckets."""
    whole = merge(drafts, rows, device)
    buckets: list[list[int]] = [[] for _ in range(rows)]
    sources: list[Sequence[Source]] = [()] * rows
    for mine, draft in drafts:
        for i, each in zip(mine, draft.buckets or (), strict=True):
            buckets[i] = each
        for i, own in zip(mine, draft.sources or (), strict=False):
            sources[i] = own
    known = [draft.steps for _, draft in drafts if draft.steps is not None]
    steps = max(known) if len(known) == len(drafts) else None
    combined = sources if any(sources) else None
    return Draft(whole.drafted, whole.trees, whole.q, whole.support, whole.drawn, buckets, steps, combined)


def _drawn(draft: Draft) -> list[bool]:
    """Which rows of a draft were drawn from its q."""
    return draft.drawn or [draft.q is not None] * len(draft.trees)


def _common_support(
    drafts: Sequence[tuple[list[int], Draft]],
) -> tuple[Support | None, list[tuple[list[int], Tensor]]]:
    """The support that all distributions share, and those of each draft; spread over V where supports differ."""
    parts = [(mine, draft.support, draft.q) for mine, draft in drafts if draft.q is not None]
    given = [support for _, support, _ in parts] or [draft.support for _, draft in drafts if draft.support]
    supports = {id(support): support for support in given}
    if len(supports) < 2:
        return next(iter(supports.values()), None), [(mine, q) for mine, _, q in parts]
    return None, [(mine, support.spread(q) if support else q) for mine, support, q in parts]


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
