"""What drafting asks of a draft head's layer, whatever computes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specchat.engine.decoding.tree import Tree
from specchat.engine.drafters.growing.scores import Scores
from specchat.engine.sequence.sequence import SequenceState

WINDOW = 256
"""Places a draft looks back: as far as the head has been trained on."""


class HeadLayer(Protocol):
    """A head with states, keys and values of every slot; a tree's token i has the i-th place after the last read."""

    window: int
    """Places that a place sees, itself included."""
    deepest: int
    """Positions it can draft for."""

    @property
    def bytes(self) -> int:
        """Memory of all slots."""

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the states of the first `length` tokens to another slot."""

    def absorb(
        self,
        slots: Sequence[int],
        starts: Sequence[int],
        tapped: Tensor | Sequence[Tensor],
        lengths: Sequence[int] | None,
    ) -> None:
        """Keep the states of tokens.

        Args:
            slots: [B].
            starts: [B], the position of each row's first token.
            tapped: [B, T, taps x d], the target's hidden states, or of each row its own [T, taps x d].
            lengths: [B], how many of each row's T tokens are wanted; all if None.
        """

    def read(self, rows: Sequence[SequenceState], begins: Sequence[int], ends: Sequence[int]) -> Scores:
        """Run on the target's states at places `begins[i]` to `ends[i]` - 1 of each row; scores [B, 1, V'] of the last.

        Places before `begins[i]` may be read again.
        """

    def extend(
        self, rows: Sequence[SequenceState], tree: Tree, level: Sequence[int], parents: Sequence[int], tokens: Tensor
    ) -> Scores:
        """Continue after drafted tokens of one depth: scores [B, P, V'] of what follows them.

        Args:
            rows: whose drafts are this tree.
            tree: of which token i has its place i after the last that was read.
            level: the P tokens.
            parents: which of the places of the step before each of them follows.
            tokens: [B, P], int64, what they are.
        """


def whole(tapped: Tensor | Sequence[Tensor]) -> Tensor:
    """Hidden states as one tensor [B, T, taps x d]; 0 after a row's own."""
    return tapped if isinstance(tapped, Tensor) else pad_sequence(list(tapped), batch_first=True)
