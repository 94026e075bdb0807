"""What a drafter is: anything that proposes tokens for the target to judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from engine.row import Row


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposals for a batch of rows.

    A drafter that works on the host gives `tokens` as lists; one that works on the device gives a tensor [B, γ].
    """

    tokens: list[list[int]] | Tensor
    lengths: list[int]
    """Tokens drafted per row."""
    q: Tensor | None = None
    """The distributions [B, γ, V], float32, the tokens were drawn from; None where every token was certain."""
    buckets: list[list[int]] | None = None
    """How sure the drafter is of each token, as one of its `Drafter.buckets`; None if it cannot tell."""

    def shortened(self, lengths: Sequence[int | None]) -> Draft:
        """The same draft with at most so many tokens per row; None leaves a row as it is."""
        kept = [n if limit is None else min(n, limit) for n, limit in zip(self.lengths, lengths, strict=True)]
        if kept == self.lengths:
            return self
        tokens = self.tokens
        if isinstance(tokens, list):
            tokens = [row[:n] for row, n in zip(tokens, kept, strict=True)]
        return Draft(tokens, kept, self.q, self.buckets)


class Drafter:
    """One way of drafting, for any number of rows."""

    name: str
    buckets: Sequence[int] = ()
    """Grades of confidence it may give its tokens; none if it gives none."""

    def admit(self, row: Row) -> None:
        """A row starts; its tokens are in `row.tokens`. To see the target read more of them, lower `row.cached`."""

    def absorb(self, rows: Sequence[Row], tapped: Tensor) -> None:
        """The target has read T tokens of each row, from `row.cached` on.

        Args:
            rows: the drafter's own.
            tapped: the hidden states [B, T, taps x hidden size] that the target was asked to hand out.
        """

    def propose(self, rows: Sequence[Row], gammas: Sequence[int]) -> Draft:
        """Up to `gammas[i]` tokens that may follow `rows[i].tokens`."""
        raise NotImplementedError

    def observe(self, row: Row, emitted: Sequence[int]) -> None:
        """A round has added `emitted` to `row.tokens`."""

    def release(self, row: Row) -> None:
        """The row has ended."""
