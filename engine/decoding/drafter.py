"""What a drafter is: anything that proposes tokens for the target to judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from torch import Tensor

from specchat.engine.decoding.gamma.budget import Budget
from specchat.engine.decoding.proposal import Draft, Offers, Support
from specchat.engine.request import DEFAULT_GAMMA
from specchat.engine.round import Proposer
from specchat.engine.sequence.sequence import SequenceState


class Drafter:
    """One way of drafting, for any number of rows."""

    name: str
    buckets: Sequence[int] = ()
    """Grades of confidence it may give its tokens; none if it gives none."""
    later: Sequence[int] = ()
    """Those of tokens that are offered beside a likelier one."""
    steady = DEFAULT_GAMMA
    """Default γ for requests that may not adapt it (seeded ones)."""
    expected: Mapping[int, float] = MappingProxyType({})
    """The acceptance rate that tokens of a bucket are first thought to have, where there is one."""
    always = False
    """Whether it is asked even for a draft of no length: what it then drafts costs nothing."""

    supports: Sequence[Support | None] = ()
    """Supports that its trees are drawn from; None for the whole vocabulary."""

    @property
    def graph_bytes(self) -> int:
        """Memory that its CUDA graphs share."""
        return 0

    def capture(self) -> None:
        """On a GPU, capture the draft steps that rows can meet, so that no reply waits for one."""

    def time_step(self) -> float | None:
        """Seconds of a draft step for one row, tried out while nothing runs; None where only rounds can tell."""
        return None

    def admit(self, row: SequenceState) -> None:
        """A row starts; its tokens are in `row.tokens`. To see the target read more of them, lower `row.cached`."""

    def unread(self, row: SequenceState) -> int:  # noqa: ARG002
        """Tokens of the row that have to be read before its next round."""
        return 0

    def read(self, rows: Sequence[SequenceState]) -> None:
        """Read one more chunk of them, of the first row and, where they fit beside it, of others."""

    def lend(self, row: SequenceState, source: int, length: int) -> int:  # noqa: ARG002
        """Slot `source` of the target's cache holds the row's first `length` tokens; how many of them may be copied."""
        return length

    def absorb(
        self, rows: Sequence[SequenceState], tapped: Tensor | Sequence[Tensor], lengths: Sequence[int] | None = None
    ) -> None:
        """The target has read T tokens of each row, from `row.cached` on.

        Args:
            rows: the drafter's own.
            tapped: the hidden states [B, T, taps x hidden size] that the target was asked to hand out, or of each row
                as many as stay.
            lengths: how many of each row's T tokens stay, where some do not; None where all do.
        """

    def offers(self, row: SequenceState) -> Offers | None:  # noqa: ARG002
        """What it will offer a row, if it knows before it drafts."""
        return None

    def riders(self, row: SequenceState, gamma: int) -> Tensor | None:  # noqa: ARG002
        """Embeddings [n, d] that are to ride behind each token of a row's chain, in a round with this γ."""
        return None

    def foresee(self, row: SequenceState, accepted: int, logits: Tensor) -> None:
        """The target has read what rides, behind the last accepted token.

        Args:
            row: one of the drafter's own.
            accepted: how many of its drafted tokens were.
            logits: [n, V].
        """

    def grows(self, row: SequenceState) -> bool:  # noqa: ARG002
        """Whether it decides itself, while it drafts, how much a row's draft may cost."""
        return False

    def is_sure(self, row: SequenceState) -> bool:  # noqa: ARG002
        """Of a drafter that is always asked: whether what it has without a draft step is nearly always right.

        Then no γ is chosen, and nothing is tried out.
        """
        return False

    def propose(
        self, rows: Sequence[SequenceState], gammas: Sequence[int], budgets: Sequence[Budget | None] = ()
    ) -> Draft:
        """Up to `gammas[i]` tokens that may follow `rows[i].tokens`, one after the other.

        Args:
            rows: the drafter's own.
            gammas: positions to draft for.
            budgets: what each row's draft may cost, for rows that `grows` is true of and that may learn it.
        """
        raise NotImplementedError

    def proposers(self, row: SequenceState, drafted: Sequence[int]) -> tuple[Proposer, ...]:  # noqa: ARG002
        """Of a drafter that puts several drafts together: those behind the row's last draft; `observe` follows.

        Args:
            row: one of the drafter's own.
            drafted: the accepted tokens, then the first choices behind them; at least one.
        """
        return ()

    def observe(self, row: SequenceState, emitted: Sequence[int]) -> None:
        """A round has added `emitted` to `row.tokens`."""

    def release(self, row: SequenceState) -> None:
        """The row has ended."""
