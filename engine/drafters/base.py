"""What a drafter is: anything that proposes tokens for the target to judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from engine.forecast import Offers
from engine.request import DEFAULT_GAMMA
from engine.row import Row
from engine.tree import Tree
from engine.tree_acceptance import Support


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposals for a batch of rows.

    A drafter that works on the host gives `tokens` as lists; one that works on the device gives a tensor [B, N].
    """

    tokens: list[list[int]] | Tensor
    lengths: list[int]
    """Tokens drafted per row."""
    q: Tensor | None = None
    """The distributions [B, γ, V], float32, that chains were drawn from; None where every token was certain."""
    buckets: list[list[int]] | None = None
    """How sure the drafter is of each token, as one of its `Drafter.buckets`; None if it cannot tell."""
    trees: Sequence[Tree | None] | None = None
    """What follows what, per row, None for chains; None where all are."""
    tree_q: Tensor | None = None
    """What trees were drawn from, behind each of the first I tokens of the pass [B, I, V'], float32; 0 for greedy rows,
    None where all are greedy."""
    support: Support | None = None
    """The tokens that trees are drawn from."""
    steps: int | None = None
    """Draft steps that it took; None for as many as the longest draft that was asked for."""

    def shortened(self, lengths: Sequence[int | None]) -> Draft:
        """The same draft with at most so many tokens per row, the first ones; None leaves a row as it is."""
        kept = [n if limit is None else min(n, limit) for n, limit in zip(self.lengths, lengths, strict=True)]
        if kept == self.lengths:
            return self
        tokens = self.tokens
        if isinstance(tokens, list):
            tokens = [row[:n] for row, n in zip(tokens, kept, strict=True)]
        trees = self.trees and [tree and tree.first(n) for tree, n in zip(self.trees, kept, strict=True)]
        return replace(self, tokens=tokens, lengths=kept, trees=trees)


class Drafter:
    """One way of drafting, for any number of rows."""

    name: str
    buckets: Sequence[int] = ()
    """Grades of confidence it may give its tokens; none if it gives none."""
    later: Sequence[int] = ()
    """Those of tokens that are offered beside a likelier one."""
    steady = DEFAULT_GAMMA
    """γ where none is asked for, and none may be adapted."""
    always = False
    """Whether it is asked even for a draft of no length: what it then drafts costs nothing."""

    def admit(self, row: Row) -> None:
        """A row starts; its tokens are in `row.tokens`. To see the target read more of them, lower `row.cached`."""

    def lend(self, row: Row, source: int, length: int) -> int:  # noqa: ARG002
        """Slot `source` of the target's cache holds the row's first `length` tokens; how many of them may be copied."""
        return length

    def absorb(self, rows: Sequence[Row], tapped: Tensor) -> None:
        """The target has read T tokens of each row, from `row.cached` on.

        Args:
            rows: the drafter's own.
            tapped: the hidden states [B, T, taps x hidden size] that the target was asked to hand out.
        """

    def offers(self, row: Row) -> Offers | None:  # noqa: ARG002
        """What it will offer a row, if it knows before it drafts."""
        return None

    def propose(self, rows: Sequence[Row], gammas: Sequence[int]) -> Draft:
        """Up to `gammas[i]` tokens that may follow `rows[i].tokens`."""
        raise NotImplementedError

    def observe(self, row: Row, emitted: Sequence[int]) -> None:
        """A round has added `emitted` to `row.tokens`."""

    def release(self, row: Row) -> None:
        """The row has ended."""
