"""Base of backends on tensors: a round's score, accept and keep, given a forward pass."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from specchat.engine.backends.tensor_acceptance import MOST_SHAPES, TensorAcceptance, TensorVerdict
from specchat.engine.cache.kv_cache import KVCache
from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.proposal import Proposal, Support
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.device.device import to_device
from specchat.engine.device.graph_pool import GraphPool
from specchat.engine.device.graphs import Graphs
from specchat.engine.device.padding import padded_width
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.sequence.sequence import SequenceState


class TensorBackend(Backend):
    """Base of backends whose passes give tensors [B, T, V] (`engine.decoding.backend.Backend`).

    Args:
        slots: sequences the cache holds.
        penalties: bias and penalties of its rows.
        pool: captures graphs, on a GPU.
    """

    cache: KVCache

    def __init__(self, slots: int, penalties: Penalties, pool: GraphPool | None) -> None:
        self.graph_pool, self.penalties = pool, penalties
        self._verdicts = Graphs(self.device, slots, pool, MOST_SHAPES)
        self._acceptance = TensorAcceptance(self._verdicts, self.penalties)

    def width(self, length: int) -> int:
        """Tokens per row that a pass over `length` tokens is padded to."""
        return padded_width(length)

    @abstractmethod
    def _forward(
        self, inputs: Tensor, slots: Sequence[int], starts: Sequence[int], tree_mask: TreeMask | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits and tapped states [B, T, …].

        With a tree mask the tokens are trees: they are written to consecutive columns, and the mask gives their
        positions and what they attend to; `keep` moves the accepted ones. The mask may be padded to the `width` of the
        pass.
        """

    @property
    def graph_bytes(self) -> int:
        """Memory of inputs and results of captured graphs."""
        return self._verdicts.bytes

    def graphs(self, most: int) -> Graphs:
        """Captured functions of a drafter on this device; eager ones on a CPU."""
        return Graphs(self.device, self.cache.slots, self.graph_pool, most)

    @torch.inference_mode()
    def forward_with_states(
        self, inputs: Tensor, slots: Sequence[int], starts: Sequence[int]
    ) -> tuple[Tensor, Tensor | None]:
        """Like `forward`, with the tapped hidden states [B, T, taps x hidden size]."""
        return self._forward(inputs, slots, starts)

    @torch.inference_mode()
    def score(self, rows: Sequence[SequenceState], proposal: Proposal) -> tuple[Tensor, Tensor | None]:
        """Logits [B, 1 + K, V] and tapped states of each row's last token and its draft."""
        last = to_device([[row.tokens[-1]] for row in rows], self.device)
        tokens = torch.cat([last, proposal.tokens], dim=1)
        mask = None
        if proposal.branches:
            mask = TreeMask.of(proposal.trees, self.width(tokens.shape[1]), self.device)
        return self._forward(tokens, [row.slot for row in rows], [row.cached for row in rows], mask)

    def accept(
        self,
        rows: Sequence[SequenceState],
        proposal: Proposal,
        scores: tuple[Tensor, Tensor | None],
        gammas: Sequence[int],
    ) -> TensorVerdict:
        """Accept or reject the drafts."""
        return self._acceptance.judge(rows, scores[0], proposal, gammas, scores[1])

    def keep(self, rows: Sequence[SequenceState], verdict: TensorVerdict) -> None:
        """Move keys and values of accepted branches to consecutive columns."""
        if verdict.proposal.branches:
            slots = to_device([row.slot for row in rows], self.device)
            self.cache.keep(slots, to_device([row.cached for row in rows], self.device), verdict.path)

    @torch.inference_mode()
    def warm_up(self, supports: Sequence[Support | None] = ()) -> None:  # noqa: ARG002
        """Run passes over one and several tokens, so that kernels are chosen."""
        for length in (1, 5):
            self.forward(torch.zeros(1, length, dtype=torch.long, device=self.device), [0], [0])
