"""Orders and drafts: what a row may draft, what was drafted for it, and the drafts of a batch as tensors.

Chains and trees share one layout: node 0 is a row's last token, node k its k-th drafted token, and `q[s]` is the
distribution with index s that candidates name as their source (`Tree.candidates`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from specchat.engine.cache.prefix_tree import common_prefix
from specchat.engine.decoding.tree import Tree, chain
from specchat.engine.device.device import to_device
from specchat.engine.round import Proposer
from specchat.engine.sequence.sequence import SequenceState

_NOTHING = chain(0)
_ROUNDING = 1e-3
"""Error of a sum of probabilities in float32 that is tolerated."""
Kind = TypeVar("Kind", bound=Hashable)


@dataclass(frozen=True)
class Budget:
    """Costs of drafting for a row, in tokens, for drafters that decide while they draft.

    A price is what has to be gained on average for a thing to pay.
    """

    passes: Sequence[float]
    """Prices of verifying 0, 1, … drafted tokens."""
    step: float
    """This row's share of the price of one more draft step."""
    rates: Mapping[int, float]
    """The probability that a token is accepted if its parent was, by bucket, in ascending order."""
    required: int = 0
    """Positions that are drafted for whatever they cost, with one token each at least."""
    repeatable: bool = False
    """Whether the draft may depend on nothing but the row."""
    repeat_rates: Mapping[int, float] = field(default_factory=dict)
    """`rates` after a token of the same bucket; empty if they are the same."""

    @cached_property
    def numbers(self) -> array[float]:
        """`passes`, `rates` and `repeat_rates` for the kernels."""
        return array("d", (*self.passes, *self.rates.values(), *(self.repeat_rates or self.rates).values()))


UNPRICED = Budget((0.0,), 0.0, {}, repeatable=True)
"""For drafters that decide nothing while they draft."""


@dataclass(frozen=True, slots=True)
class RowOrder:
    """What may be drafted for one row in one round."""

    row: SequenceState
    gamma: int
    """Positions that draft steps may be taken for."""
    budget: Budget = UNPRICED
    free: bool = False
    """Whether tokens that take no draft step may be drafted up to `row.room`, even if γ is 0."""

    @property
    def drafts(self) -> bool:
        """Whether anything may be drafted."""
        return self.gamma > 0 or self.free


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
    """Name of the drafter or the draft model."""
    tokens: Sequence[int] | None = None
    """Its chain; None if it is the whole draft."""

    def proposer(self, drafted: Sequence[int]) -> Proposer:
        """The entry of the round's record, from the accepted tokens followed by the first choices after them."""
        if self.tokens is None:
            return Proposer(self.name, len(drafted), len(drafted))
        return Proposer(self.name, len(self.tokens), common_prefix(self.tokens, drafted))


@dataclass(frozen=True, slots=True)
class Draft:
    """Drafted tokens of one row."""

    tokens: Sequence[int] | Tensor = ()
    """[K], on the host, or int64 on the device."""
    tree: Tree = _NOTHING
    """Layout of the tokens; of a chain `chain(K)`."""
    q: Tensor | None = None
    """[I, V'], float32: distributions that candidates were drawn from; None if the tokens are certain (one-hot)."""
    support: Support | None = None
    """The V' tokens that the drafter draws from; None for the whole vocabulary."""
    buckets: Sequence[int] = ()
    """Confidence bucket of each token, one of `DrafterProfile.buckets`; empty if the drafter has none."""
    steps: int = 0
    """Draft steps taken."""
    sources: Sequence[Source] = ()
    """The drafts that it was combined from; empty if the drafter does not combine any."""
    fault: Exception | None = None
    """Why the drafter failed to draft; None if it did not."""

    @classmethod
    def chain(cls, tokens: Sequence[int], buckets: Sequence[int] = (), steps: int = 0) -> Draft:
        """A chain of certain tokens."""
        return cls(tokens, chain(len(tokens)), buckets=buckets, steps=steps)

    @property
    def on_host(self) -> Sequence[int]:
        """The tokens on the host."""
        return self.tokens.tolist() if isinstance(self.tokens, Tensor) else self.tokens

    def q_over(self, support: Support | None) -> Tensor | None:
        """`q` over a common support (`common_support`)."""
        if self.q is None or self.support is None or self.support is support:
            return self.q
        return self.support.spread(self.q)

    def first(self, count: int) -> Draft:
        """The first `count` tokens of the draft."""
        if count >= len(self.tree):
            return self
        return replace(self, tokens=self.tokens[:count], tree=self.tree.first(count), buckets=self.buckets[:count])

    def check(self, order: RowOrder, vocabulary: int) -> None:
        """Check what a drafter has returned; q on a GPU is not looked at, as that would wait for the device.

        Args:
            order: that it was drafted for.
            vocabulary: V.

        Raises:
            ValueError: it covers more positions than were asked for, as there may be no room for them, or has other
                tokens than the target, or distributions that are none.
        """
        most, size = order.row.room if order.free else order.gamma, len(self.tree)
        if self.tree.depth > most:
            raise ValueError(f"it drafted for {self.tree.depth} positions where {most} were asked for")
        if len(self.tokens) != size or len(self.buckets) not in (0, size):
            raise ValueError(f"it drafted {len(self.tokens)} tokens for a tree of {size}")
        if not isinstance(self.tokens, Tensor) and not all(0 <= token < vocabulary for token in self.tokens):
            raise ValueError(f"it drafted a token that is none of the {vocabulary} of the target")
        if self.q is None:
            return
        width = vocabulary if self.support is None else len(self.support.tokens)
        if self.q.dtype != torch.float32 or self.q.shape[-1] != width or len(self.q) < self.tree.inner:
            raise ValueError(f"its probabilities q are none of {width} tokens in float32 for each of its nodes")
        if self.q.device.type != "cpu":
            return
        used = self.q if self.tree.tests is not None else self.q[: self.tree.inner]
        sums = used.sum(-1)
        # Where a network fails numerically there is no distribution, and acceptance leaves the row to the target.
        if bool(((sums > 0) & ((sums - 1).abs() > _ROUNDING)).any()):
            raise ValueError("its probabilities q do not add up to 1")


def common_support(drafts: Sequence[Draft]) -> Support | None:
    """The support that all distributions are over; None, for the whole vocabulary, where they differ."""
    drawn = [draft for draft in drafts if draft.q is not None]
    supports = {id(draft.support): draft.support for draft in drawn or drafts if drawn or draft.support}
    return next(iter(supports.values())) if len(supports) == 1 else None


def draft_by_kind(
    orders: Sequence[RowOrder],
    kind_of: Callable[[RowOrder], Kind],
    draft: Callable[[Kind, list[RowOrder]], Sequence[Draft]],
) -> list[Draft]:
    """The drafts of all orders; orders of one kind are drafted for together."""
    alike: dict[Kind, list[int]] = {}
    for i, order in enumerate(orders):
        alike.setdefault(kind_of(order), []).append(i)
    drafts = [Draft()] * len(orders)
    for kind, indices in alike.items():
        for i, made in zip(indices, draft(kind, [orders[i] for i in indices]), strict=True):
            drafts[i] = made
    return drafts


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """Drafts of B rows as tensors on the target's device."""

    tokens: Tensor
    """[B, K], int64; 0 beyond a row's length."""
    trees: Sequence[Tree]
    q: Tensor | None = None
    """[B, I, V'], float32; None if all tokens are certain."""
    support: Support | None = None
    """The V' tokens that `q` is over; None for the whole vocabulary."""
    drawn: Sequence[bool] = ()
    """[B], whether a row's tokens were drawn from `q`."""

    @classmethod
    def of(cls, drafts: Sequence[Draft], device: torch.device) -> DraftBatch:
        """The batch of these drafts."""
        support, drawn = common_support(drafts), [draft.q is not None for draft in drafts]
        q = _joined([draft.q_over(support) for draft in drafts]) if any(drawn) else None
        return cls(_tokens(drafts, device), [draft.tree for draft in drafts], q, support, drawn)

    @property
    def lengths(self) -> list[int]:
        """Number of drafted tokens, per row."""
        return [len(tree) for tree in self.trees]

    @property
    def branches(self) -> bool:
        """Whether some row has several candidates for a position."""
        return any(tree.branches for tree in self.trees)


def _tokens(drafts: Sequence[Draft], device: torch.device) -> Tensor:
    """[B, K], int64; by one copy to the device where all tokens are on the host."""
    if any(isinstance(draft.tokens, Tensor) for draft in drafts):
        return _joined([to_device(draft.tokens, device, torch.long) for draft in drafts])
    longest = max(len(draft.tokens) for draft in drafts)
    padded = [[*draft.tokens, *[0] * (longest - len(draft.tokens))] for draft in drafts]
    return to_device(padded, device, torch.long).reshape(len(drafts), longest)


def _joined(parts: Sequence[Tensor | None]) -> Tensor:
    """[B, N, …], N the length of the longest part, padded with 0; None is all 0."""
    known = [part for part in parts if part is not None]
    if len(known) == len(parts) and len({len(part) for part in known}) == 1:
        return torch.stack(known) if len(known) > 1 else known[0][None]
    whole = known[0].new_zeros(len(parts), max(map(len, known)), *known[0].shape[1:])
    for own, part in zip(whole, parts, strict=True):
        if part is not None:
            own[: len(part)] = part
    return whole
