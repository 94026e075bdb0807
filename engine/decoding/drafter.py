"""The drafter interface: anything that proposes tokens for the target to verify, and calls of the drafters of rows."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from specchat.engine.decoding.draft import Draft, RowOrder, Support, draft_by_kind
from specchat.engine.decoding.tree import BRANCHES, Tree
from specchat.engine.decoding.tree_growth import Expanded
from specchat.engine.device.device import to_device
from specchat.engine.kernels.round import TargetStates, TextMemory
from specchat.engine.request import NO_DRAFTER
from specchat.engine.sequence.sequence import SequenceState

LATER_RATE = 0.06
"""Prior acceptance rate of a token that is offered next to a likelier one."""
Shapes = Callable[[int], tuple[Sequence[int], Tree]]
"""For a γ, the confidence bucket of each token and the tree that a drafter will draft."""


@dataclass(frozen=True, eq=False, slots=True)
class TextRecipe:
    """Drafts from the text of a row, where it repeats."""

    name: str
    """Name of such drafts in records."""
    marks: array[int]
    """`TokenMark` of each of the V tokens."""
    first: int
    """Bucket of grade 0."""
    least: int
    """Least grade of the first token of a draft."""
    memory: Callable[[SequenceState], TextMemory]
    """The text of a row."""
    has_more: Callable[[SequenceState], bool]
    """Whether other texts continue a row's text, so that the kernels cannot draft for it."""


@dataclass(frozen=True, eq=False, slots=True)
class NetworkRecipe:
    """Trees that a draft head or a draft model grows, which reads the places of a text."""

    name: str
    """Name of such drafts in records."""
    address: int
    """`sk_drafter`."""
    first: int
    """The token of a text that its first place is for: 1 of a head, 0 of a draft model."""
    deepest: int
    """Maximum number of positions."""
    support: Support | None
    take_unread: Callable[[Sequence[SequenceState]], list[int]]
    """The first place that each row has to read; from then on they may count as read."""
    has_read: Callable[[SequenceState, int], None]
    """Called with a row and the number of places that have been read."""
    has_expanded: Callable[[SequenceState, Expanded], None] | None = None
    """Called with the drafted tokens that were read after that; None for networks that do not keep them."""
    width: int = 0
    """Width of the target's hidden states that it reads; 0 if it reads none."""
    take_states: Callable[[], Sequence[TargetStates]] = tuple
    """Hidden states of the target that it has not read; from then on they count as read."""
    branches: int = BRANCHES
    """Maximum number of tokens after one."""
    one_step: bool = False
    """Whether a draft takes one step, whatever its length."""


@dataclass(frozen=True, eq=False, slots=True)
class Recipe:
    """Drafts from the text of a row where it repeats, else by a network; the empty recipe drafts nothing."""

    text: TextRecipe | None = None
    network: NetworkRecipe | None = None
    names_sources: Callable[[], bool] = lambda: False
    """Whether records name what drafted."""

    def covers(self, order: RowOrder) -> bool:
        """Whether the kernels can draft for a row; a network has no chains, which lenience needs."""
        if self.network and not order.row.request.sampling.lossless:
            return False
        return self.text is None or not self.text.has_more(order.row)

    def joined(self, other: Recipe, first: int) -> Recipe:
        """This recipe and another one, whose buckets are moved by `first`."""
        text = other.text and replace(other.text, first=other.text.first + first)
        return Recipe(self.text or text, self.network or other.network)


@dataclass(frozen=True, slots=True)
class DrafterProfile:
    """Properties of a drafter that hold for all rows."""

    buckets: Sequence[int] = ()
    """Confidence buckets of its tokens; empty if it gives none."""
    expected_rates: Mapping[int, float] = field(default_factory=dict)
    """Prior acceptance rate by bucket."""
    methods: Sequence[int] = (0,)
    """The first bucket of each method of drafting, for drafters that combine several."""
    free: bool = False
    """Whether some of its drafts take no draft step, so that `RowOrder.free` applies."""
    stepless: bool = False
    """Whether none of its drafts takes a draft step, so that no γ has to be chosen."""


@dataclass(frozen=True, slots=True)
class RowProfile:
    """Properties of a drafter for one row."""

    shapes: Shapes | None = None
    """Shapes of its drafts, if known before drafting."""
    grows: bool = False
    """Whether it decides while drafting how long a draft is, within a `Budget`."""
    one_step: bool = False
    """Whether one draft step makes a draft of any length; then `shapes` tells of the longest for any γ."""
    known_states: int | None = None
    """Number of leading tokens whose hidden states the drafter has, if it needs hidden states: the target reads the
    tokens after them again."""


class Drafter:
    """A method of drafting, for any number of rows. Each row belongs to one drafter at a time."""

    name: str
    profile = DrafterProfile()
    supports: Sequence[Support | None] = ()
    """Supports that its trees are drawn from; None for the whole vocabulary."""
    weight_bytes: int = 0
    """Memory of weights that were loaded for it alone and are not counted elsewhere."""
    cache_bytes: int = 0
    """Memory of its caches, `score_bytes` included."""
    score_bytes: int = 0
    """Memory of a separate layer that scores tokens."""
    graph_bytes: int = 0
    """Memory that its CUDA graphs share."""
    recipe: Recipe | None = None
    """What the kernels need to draft as it would, next to a target that runs on them; None if they cannot."""

    def warm_up(self) -> float | None:
        """Plan to capture CUDA graphs, and time a draft step of one row, while no request runs.

        Returns:
            Seconds of a draft step; None if they can only be learned from rounds.
        """
        return None

    def admit(self, row: SequenceState) -> RowProfile:  # noqa: ARG002
        """Start a row with the tokens `row.tokens`, of which `row.cached` are in the target's cache; changes no row."""
        return RowProfile()

    def unread(self, row: SequenceState) -> int:  # noqa: ARG002
        """Number of tokens that `prefill` has to read before the row's next round."""
        return 0

    def prefill(self, rows: Sequence[SequenceState]) -> None:
        """Read one chunk of the first row, and of other rows with unread tokens if they fit into the same pass."""

    def propose(self, orders: Sequence[RowOrder]) -> Sequence[Draft]:
        """Draft up to γ positions after the tokens of each row; one draft per order."""
        raise NotImplementedError

    def on_hidden_states(
        self, rows: Sequence[SequenceState], states: Tensor | Sequence[Tensor], lengths: Sequence[int] | None = None
    ) -> None:
        """Called after each target pass over T tokens per row, from `row.cached` on.

        Args:
            rows: B rows of this drafter.
            states: the tapped hidden states [B, T, taps x hidden size], or per row [T, taps x hidden size].
            lengths: how many of each row's T tokens are kept; None for all.
        """

    def on_accepted(self, row: SequenceState, emitted: Sequence[int]) -> None:
        """Called after each round, which has added `emitted` to `row.tokens`."""

    def release(self, row: SequenceState) -> None:
        """End a row."""


class RowDrafters:
    """All drafters of an engine, each called with its own rows.

    Args:
        by_name: the drafters.
        on_fault: called with a row whose drafter raised; the row continues without drafts.
        vocabulary: V of the target.
        constrained: makes the drafter of rows with a constraint from that of other rows.
    """

    def __init__(
        self,
        by_name: Mapping[str, Drafter],
        on_fault: Callable[[SequenceState, Exception], None],
        vocabulary: int,
        constrained: Callable[[Drafter], Drafter],
    ) -> None:
        self.by_name, self._on_fault, self._vocabulary = by_name, on_fault, vocabulary
        self._constrained = cache(constrained)

    def of(self, row: SequenceState) -> Drafter:
        """The drafter of a row."""
        drafter = self.by_name[row.drafter]
        return self._constrained(drafter) if row.constraint and row.drafter != NO_DRAFTER else drafter

    def has_read(self, row: SequenceState) -> bool:
        """Whether the row's drafter needs no prefill before the row's next round."""
        try:
            return not self.of(row).unread(row)
        except Exception as error:
            self._on_fault(row, error)
            return True

    def prefill(self, rows: Sequence[SequenceState]) -> None:
        """Read one chunk for the first row's drafter, of the rows that it drafts for."""
        mine = [row for row in rows if row.drafter == rows[0].drafter]
        self._call(mine, self.of(rows[0]).prefill, mine)

    def propose(self, orders: Sequence[RowOrder]) -> list[Draft]:
        """One draft per order; a drafter that fails costs its rows their drafts (`Draft.fault`)."""
        return draft_by_kind(orders, lambda order: self.of(order.row) if order.drafts else None, self._propose)

    def _propose(self, drafter: Drafter | None, orders: Sequence[RowOrder]) -> list[Draft]:
        if drafter is None:
            return [Draft()] * len(orders)
        try:
            drafts = drafter.propose(orders)
            return [self._checked(*each) for each in zip(orders, drafts, strict=True)]
        except Exception as error:  # a drafter is a plug: whatever it raises, the target continues alone
            return [Draft(fault=error)] * len(orders)

    def _checked(self, order: RowOrder, draft: Draft) -> Draft:
        try:
            draft.check(order, self._vocabulary)
        except ValueError as error:
            return Draft(fault=error)
        return draft

    def on_hidden_states(
        self,
        rows: Sequence[SequenceState],
        states: Tensor | Sequence[Tensor] | None,
        lengths: Sequence[int] | None = None,
    ) -> None:
        """Give drafters the hidden states of tokens that the target has just read, from `SequenceState.cached` on.

        Args:
            rows: B.
            states: [B, T, taps x hidden size], or per row [kept tokens, taps x hidden size]; None without taps.
            lengths: how many of each row's T tokens are kept; None for all.
        """
        if states is None:
            return
        names = dict.fromkeys(row.drafter for row in rows)
        if len(names) == 1:
            self._call(rows, self.of(rows[0]).on_hidden_states, rows, states, lengths)
            return
        for name in names:
            mine = [i for i, row in enumerate(rows) if row.drafter == name]
            part = states[to_device(mine, states.device)] if isinstance(states, Tensor) else [states[i] for i in mine]
            own = [rows[i] for i in mine]
            self._call(own, self.by_name[name].on_hidden_states, own, part, lengths and [lengths[i] for i in mine])

    def on_accepted(self, row: SequenceState, emitted: Sequence[int]) -> None:
        """A round has added `emitted` to `row.tokens`."""
        self._call([row], self.of(row).on_accepted, row, emitted)

    def _call(self, rows: Sequence[SequenceState], hook: Callable[..., None], *arguments: Any) -> None:
        """Call a hook; whatever it raises, but for a lack of memory, costs these rows their drafts only."""
        try:
            hook(*arguments)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            for row in rows:
                self._on_fault(row, error)
