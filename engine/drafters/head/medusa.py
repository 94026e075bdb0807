"""Medusa heads (Cai et al. 2024): each predicts one position further from the target's last hidden state alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from specchat.engine.decoding.tree import Tree
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.device.to_device import to_device
from specchat.engine.drafters.growing.scores import Scores
from specchat.engine.drafters.head.layer import whole
from specchat.engine.drafters.head.states import States
from specchat.engine.sequence.sequence import SequenceState


@dataclass(frozen=True, slots=True)
class MedusaLayout:
    """Medusa heads: residual blocks and an output layer each."""

    heads: int
    blocks: int
    """Per head."""
    shared: bool = False
    """Whether the target's output layer scores for all of them; else each has one of its own."""
    draft_vocabulary: int | None = None
    """V'; None for the target's V."""


class MedusaHeads(nn.Module):
    """All heads of a target.

    Args:
        layout: how many there are.
        hidden: d, of the target.
        vocabulary: V', what they draft.
        depth: of the target's hidden state that they read, the last one.
    """

    def __init__(self, layout: MedusaLayout, hidden: int, vocabulary: int, depth: int) -> None:
        super().__init__()
        self.hidden, self.taps = hidden, (depth,)
        self.blocks, self.shared = layout.blocks, layout.shared
        self.heads = nn.ModuleList(
            nn.ModuleList(_Block(hidden) for _ in range(layout.blocks)) for _ in range(layout.heads)
        )
        if not layout.shared:
            for head in self.heads:
                assert isinstance(head, nn.ModuleList)
                head.append(nn.Linear(hidden, vocabulary, bias=False))

    def forward(self, state: Tensor, number: int) -> Tensor:
        """From the target's hidden states [..., d], the logits [..., V'] of head `number`; [..., d] for the target's
        output layer where that is shared."""
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
        output: the target's output layer of V' tokens, where it is shared; else None.
        like: of the target's type and on its device.
        slots: as many as the target's cache has.
        columns: as many as the target's cache has.
    """

    window = 1

    def __init__(self, heads: MedusaHeads, output: nn.Module | None, like: Tensor, slots: int, columns: int) -> None:
        self._heads = heads
        self._output = output or nn.Identity()
        self.deepest = len(heads.heads)
        self._states = States(like, slots, columns, heads.hidden)
        self._last: Tensor = like.new_empty(0)
        """[B, 1, d], the state behind the last token of each row."""

    @property
    def bytes(self) -> int:
        """Memory of all slots."""
        return self._states.stored.nbytes

    def read_places(self, slots: Tensor, ends: Tensor, tokens: Tensor) -> Tensor:  # noqa: ARG002
        """The state behind each row's last token [B, 1, d]; 0 where there is no row."""
        states = self._states.stored[slots, (ends - 1).clamp_(min=0)]
        return states.masked_fill(ends[:, None] == 0, 0.0)[:, None]

    def extend_places(
        self,
        slots: Tensor,  # noqa: ARG002
        ends: Tensor,  # noqa: ARG002
        tree_mask: TreeMask,  # noqa: ARG002
        index: Tensor,  # noqa: ARG002
        last: int,  # noqa: ARG002
        outcome: Tensor,
        tokens: Tensor,  # noqa: ARG002
    ) -> Tensor:
        """The same states [B, P, d], whatever has been drafted."""
        return outcome

    def score_places(self, outcome: Tensor, depth: int) -> Scores:
        """Scores of the head of this depth: computed once, as the P states of a row are the same."""
        return self._score(outcome[:, :1], depth, outcome.shape[1])

    def absorb(
        self,
        slots: Sequence[int],
        starts: Sequence[int],
        tapped: Tensor | Sequence[Tensor],
        lengths: Sequence[int] | None = None,
    ) -> None:
        """Keep the states of all T tokens."""
        del lengths  # what is not wanted is overwritten
        self._states.put(slots, starts, whole(tapped))

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the states of the first `length` tokens."""
        self._states.copy(source, target, length)

    def read(self, rows: Sequence[SequenceState], begins: Sequence[int], ends: Sequence[int]) -> Scores:  # noqa: ARG002
        """Scores of the first head."""
        states = self._states.stored
        slots = to_device([row.slot for row in rows], states.device)
        self._last = states[slots, to_device([end - 1 for end in ends], states.device)][:, None]
        return self._score(self._last, 0)

    def extend(
        self,
        rows: Sequence[SequenceState],  # noqa: ARG002
        tree: Tree,
        level: Sequence[int],
        parents: Sequence[int],  # noqa: ARG002
        tokens: Tensor,  # noqa: ARG002
    ) -> Scores:
        """Scores of the head of this depth, whatever has been drafted."""
        return self._score(self._last, tree.depths[level[0]], len(level))

    def _score(self, state: Tensor, head: int, count: int = 1) -> Scores:
        """Scores of a head for `count` places of states [B, 1, d]."""
        logits: Tensor = self._output(self._heads(state, head))
        return Scores(logits.expand(-1, count, -1))
