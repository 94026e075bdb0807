"""The drafter interface: anything that proposes tokens for the target to verify."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from specchat.engine.decoding.draft import Draft, RowOrder, Support
from specchat.engine.decoding.recipe import Recipe
from specchat.engine.decoding.tree import Tree
from specchat.engine.sequence.sequence import SequenceState

LATER_RATE = 0.06
"""Prior acceptance rate of a token that is offered next to a likelier one."""
Shapes = Callable[[int], tuple[Sequence[int], Tree]]
"""For a γ, the confidence bucket of each token and the tree that a drafter will draft."""


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
    """How the kernels can draft by themselves as it would, with targets that run on them; None if they cannot."""

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
