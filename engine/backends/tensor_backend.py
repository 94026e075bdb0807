"""Base of backends on tensors, and their rounds: score, accept and keep, given a forward pass."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from specchat.engine.backends.tensor_acceptance import MOST_SHAPES, TensorAcceptance, TensorOutcomes
from specchat.engine.cache.kv_cache import KVCache
from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.draft import Draft, DraftBatch, RowOrder, Support
from specchat.engine.decoding.round import RoundOutcome, Runner, begin_masks
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.device.device import padded_width, to_device
from specchat.engine.device.graphs import GraphPool, Graphs
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
    def score(self, rows: Sequence[SequenceState], drafts: DraftBatch) -> tuple[Tensor, Tensor | None]:
        """Logits [B, 1 + K, V] and tapped states of each row's last token and its draft, valid until the next pass."""
        last = to_device([[row.tokens[-1]] for row in rows], self.device)
        tokens = torch.cat([last, drafts.tokens], dim=1)
        mask = None
        if drafts.branches:
            mask = TreeMask.of(drafts.trees, self.width(tokens.shape[1]), self.device)
        return self._forward(tokens, [row.slot for row in rows], [row.cached for row in rows], mask)

    def accept(
        self, orders: Sequence[RowOrder], drafts: DraftBatch, scores: tuple[Tensor, Tensor | None]
    ) -> TensorOutcomes:
        """Accept or reject the drafts."""
        gammas = [max(order.gamma, tree.depth) for order, tree in zip(orders, drafts.trees, strict=True)]
        return self._acceptance.judge([order.row for order in orders], scores[0], drafts, gammas, scores[1])

    def keep(self, rows: Sequence[SequenceState], outcomes: TensorOutcomes) -> None:
        """Move keys and values of accepted branches to consecutive columns."""
        if outcomes.drafts.branches:
            slots = to_device([row.slot for row in rows], self.device)
            self.cache.keep(slots, to_device([row.cached for row in rows], self.device), outcomes.path)

    @torch.inference_mode()
    def warm_up(self, supports: Sequence[Support | None] = ()) -> None:  # noqa: ARG002
        """Run passes over one and several tokens, so that kernels are chosen."""
        for length in (1, 5):
            self.forward(torch.zeros(1, length, dtype=torch.long, device=self.device), [0], [0])


class TensorRunner(Runner[TensorBackend]):
    """Runs the rounds of a target on tensors, one per call."""

    def run(self, orders: Sequence[RowOrder], max_rounds: int = 1, ends: Collection[int] = ()) -> list[RoundOutcome]:  # noqa: ARG002
        """Run one round."""
        target, watch, rows = self._target, self._target.stopwatch, [order.row for order in orders]
        watch.start()
        drafts = self._trim(orders, self._drafters.propose(orders), len(orders))
        watch.mark()
        begin_masks(rows, drafts)
        batch = DraftBatch.of(drafts, target.device)
        accepted = target.accept(orders, batch, target.score(rows, batch))
        target.keep(rows, accepted)
        self._on_launch()
        outcomes = accepted.outcomes()
        watch.mark()
        kept = [1 + outcome.accepted for outcome in outcomes]
        self._drafters.on_hidden_states(rows, accepted.hidden_states(), kept)
        return [RoundOutcome(drafts, outcomes, *watch.seconds())]

    def plain_pass(self, rows: Sequence[SequenceState]) -> None:
        """Score and accept without drafts, and keep nothing."""
        orders, batch = [RowOrder(row, 0) for row in rows], DraftBatch.of([Draft()] * len(rows), self._target.device)
        self._target.accept(orders, batch, self._target.score(rows, batch)).outcomes()
