"""Medusa heads (Cai et al. 2024): each predicts one position further from the target's last hidden state alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from specchat.engine.runner.to_device import to_device
from specchat.engine.runner.tree import Tree
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.speculation.drafters.head.layer import Scores
from specchat.engine.speculation.drafters.head.states import States


@dataclass(frozen=True, slots=True)
class MedusaLayout:
    """Medusa heads: residual blocks and an output layer each."""

    heads: int
    blocks: int
    """Per head."""


class MedusaHeads(nn.Module):
    """All heads of a target.

    Args:
        layout: how many there are.
        hidden: d, of the target.
        vocabulary: V, of the target.
        depth: of the target's hidden state that they read, the last one.
    """

    def __init__(self, layout: MedusaLayout, hidden: int, vocabulary: int, depth: int) -> None:
        super().__init__()
        self.hidden, self.taps = hidden, (depth,)
        self.heads = nn.ModuleList(
            nn.ModuleList([*(_Block(hidden) for _ in range(layout.blocks)), nn.Linear(hidden, vocabulary, bias=False)])
            for _ in range(layout.heads)
        )

    def forward(self, state: Tensor, number: int) -> Tensor:
        """Logits [..., V] of head `number` for the target's hidden states [..., d]."""
        for part in self.heads[number].children():
            state = part(state)
        return state


class _Block(nn.Module):
    """x + SiLU(W x + b)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + functional.silu(self.linear(x))
        return out


class MedusaLayer:
    """The target's last hidden states [slots, columns, d], and what the heads say of them.

    Head i scores the i-th position of a draft: the target's own output layer has chosen the token before it, from the
    same state. All tokens of one depth of a tree therefore share their distribution.

    Args:
        heads: the network.
        like: of the target's type and on its device.
        slots: as many as the target's cache has.
        columns: as many as the target's cache has.
    """

    window = 1

    def __init__(self, heads: MedusaHeads, like: Tensor, slots: int, columns: int) -> None:
        self._heads = heads
        self.deepest = len(heads.heads)
        self._states = States(like, slots, columns, heads.hidden)
        self._last: Tensor = like.new_empty(0)
        """[B, 1, d], the state behind the last token of each row."""

    @property
    def bytes(self) -> int:
        """Memory of all slots."""
        return self._states.stored.nbytes

    def absorb(
        self, slots: Sequence[int], starts: Sequence[int], tapped: Tensor, lengths: Sequence[int] | None = None
    ) -> None:
        """Keep the states of all T tokens."""
        del lengths  # what is not wanted is overwritten
        self._states.put(slots, starts, tapped)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the states of the first `length` tokens."""
        self._states.copy(source, target, length)

    def read(self, rows: Sequence[SequenceState], begins: Sequence[int], ends: Sequence[int]) -> Scores:  # noqa: ARG002
        """Scores of the first head."""
        states = self._states.stored
        slots = to_device([row.slot for row in rows], states.device)
        self._last = states[slots, to_device([end - 1 for end in ends], states.device)][:, None]
        return Scores(self._heads(self._last, 0))

    def extend(
        self,
        rows: Sequence[SequenceState],  # noqa: ARG002
        tree: Tree,
        level: Sequence[int],
        parents: Sequence[int],  # noqa: ARG002
        tokens: Tensor,  # noqa: ARG002
    ) -> Scores:
        """Scores of the head of this depth, whatever has been drafted."""
        logits = self._heads(self._last, tree.depths[level[0]])
        return Scores(logits.expand(-1, len(level), -1))
