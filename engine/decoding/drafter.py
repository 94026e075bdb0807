"""The drafter interface: anything that proposes tokens for the target to verify."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from specchat.engine.decoding.proposal import Draft, Offers, Support
from specchat.engine.sequence.sequence import SequenceState

LATER_RATE = 0.06
"""Prior acceptance rate of a token that is offered next to a likelier one."""


@dataclass(frozen=True, slots=True)
class DrafterProfile:
    """Properties of a drafter that hold for all rows."""

    buckets: Sequence[int] = ()
    """Confidence buckets of its tokens; empty if it gives none."""
    expected_rates: Mapping[int, float] = field(default_factory=dict)
    """Prior acceptance rate by bucket."""
    methods: Sequence[int] = (0,)
    """The first bucket of each method of drafting, for drafters that combine several."""
    proposes_at_zero: bool = False
    """Whether `propose` is also called for γ 0, since part of its drafts costs nothing."""


@dataclass(frozen=True, slots=True)
class RowProfile:
    """Properties of a drafter for one row."""

    offers: Offers | None = None
    """Shape of its drafts by γ, if known before drafting."""
    grows: bool = False
    """Whether it decides while drafting how long a draft is, within a `Budget`."""
    free: bool = False
    """Whether its drafts take no draft step, so that no γ has to be chosen."""
    sure_bucket: Callable[[], int | None] = lambda: None
    """Bucket of the first token of its next draft, if that takes no draft step and is nearly always right."""
    known_states: int | None = None
    """Number of leading tokens whose hidden states the drafter has, if it needs hidden states: the target reads the
    tokens after them again."""


@dataclass(frozen=True)
class Budget:
    """Costs of drafting for a row, in tokens, for drafters that decide while they draft.

    A price is what has to be gained on average for a thing to pay.
    """

    passes: Sequence[float]
    """Of verifying 0, 1, … drafted tokens."""
    step: float
    """Of one more draft step, this row's share."""
    rates: Mapping[int, float]
    """The chance that a token is accepted where the one before it was, by bucket, in ascending order."""
    line: int = 0
    """Positions that are drafted for whatever they cost: one token each at least."""
    repeatable: bool = False
    """Whether the draft may depend on nothing but the row."""
    again: Mapping[int, float] = field(default_factory=dict)
    """`rates` after a token of the same bucket; empty if they are the same."""

    @cached_property
    def numbers(self) -> array[float]:
        """The prices of passes, and the two rates of buckets 0, 1, …, for the kernels."""
        return array("d", (*self.passes, *self.rates.values(), *(self.again or self.rates).values()))


Budgets = Sequence[Budget | None]
"""Of the rows of a batch; None where measured costs may not be used."""


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
    kernel_head: int | None = None
    """Address of its head in the kernels if these can draft with it by themselves; None if not."""

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

    def propose(self, rows: Sequence[SequenceState], gammas: Sequence[int], budgets: Budgets = ()) -> Draft:
        """Draft up to `gammas[i]` positions after `rows[i].tokens`.

        Args:
            rows: B rows of this drafter.
            gammas: [B].
            budgets: [B], costs for rows with `RowProfile.grows`.
        """
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
