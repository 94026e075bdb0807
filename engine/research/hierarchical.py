"""Hierarchical drafter: a draft model that is itself sped up, by the text (Leviathan et al. 2023, section 6).

The suffix drafter proposes what the draft model verifies in one pass, by speculative sampling (Algorithm 1 there, q
one-hot). What comes out is distributed as the draft model's own text, so the target judges it by the draft model's q. A
draft step costs less by as many tokens as a pass of the draft model accepts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.decoding.acceptance import Drafted, Verdict, accept
from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.draft import Draft, RowOrder
from specchat.engine.decoding.drafter import Drafter, RowProfile
from specchat.engine.decoding.tree import BRANCHES, chain
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.device.device import to_device
from specchat.engine.drafters.build_context import BuildContext
from specchat.engine.drafters.draft_model import Member, members
from specchat.engine.drafters.suffix import SuffixDrafter
from specchat.engine.request import MAX_GAMMA
from specchat.engine.sampling.rng import Stream, uniforms
from specchat.engine.sampling.sampler import SamplingRows, standardise
from specchat.engine.sequence.sequence import SequenceState


@dataclass(slots=True)
class _Chain:
    """One row's draft while it is made."""

    row: SequenceState
    length: int
    """Tokens that are wanted."""
    u: NDArray[np.float64]
    """[2 x `MAX_GAMMA`]: the uniform of each position, by which the draft model draws its own token."""
    tokens: list[int] = field(default_factory=list)
    q: list[Tensor] = field(default_factory=list)
    """[n, V] each, distributions of the tokens of a step, if the row draws its draft."""


class HierarchicalDrafter(Drafter):
    """A draft model whose chains the suffix drafter drafts.

    The text is on the host: on a GPU it is waited for after each pass of the draft model.

    Args:
        draft: the draft model.
        suffix: drafts for it.
        target: whose penalties it shares, so that p and q know the same context.
    """

    name = "hierarchical"

    def __init__(self, draft: Member, suffix: SuffixDrafter, target: Backend) -> None:
        self._model, self._cache, self._steps = draft.model, draft.cache, draft.steps
        self._suffix, self._penalties = suffix, target.penalties

    def admit(self, row: SequenceState) -> RowProfile:
        """Start the row in both."""
        self._cache.admit(row)
        self._suffix.admit(row)
        return RowProfile()

    def unread(self, row: SequenceState) -> int:
        """Tokens that either has to read."""
        return self._suffix.unread(row) + self._cache.unread(row)

    def prefill(self, rows: Sequence[SequenceState]) -> None:
        """A chunk for the text, then for the draft model."""
        if self._suffix.unread(rows[0]):
            self._suffix.prefill(rows)
        else:
            self._cache.prefill([row for row in rows if self._cache.unread(row)])

    @torch.inference_mode()
    def propose(self, orders: Sequence[RowOrder]) -> list[Draft]:
        """γ tokens of each row."""
        rows = [order.row for order in orders]
        unfed = self._cache.catch_up(rows)
        u = uniforms([row.seed for row in rows], [row.rounds for row in rows], Stream.DRAFT, 2 * MAX_GAMMA)
        chains = [_Chain(order.row, order.gamma, own) for order, own in zip(orders, u, strict=True)]
        while incomplete := [each for each in chains if len(each.tokens) < each.length]:
            self._step(incomplete, unfed)
            unfed = 1
        for each in chains:
            self._cache.expect(each.row, each.length)
        return [
            Draft(each.tokens, chain(each.length), torch.cat(each.q) if each.q else None, steps=each.length)
            for each in chains
        ]

    def on_accepted(self, row: SequenceState, emitted: Sequence[int]) -> None:
        """Keep what was accepted; the last drafted token was never fed."""
        self._suffix.on_accepted(row, emitted)
        self._cache.on_accepted(row, emitted)

    def release(self, row: SequenceState) -> None:
        """End the row in both."""
        self._cache.release(row)
        self._suffix.release(row)

    def _step(self, chains: Sequence[_Chain], unfed: int) -> None:
        """Extend each chain by one pass of the draft model over what the text proposes, and one wait for its verdict.

        Args:
            chains: incomplete chains.
            unfed: tokens at the end of each text, drafted ones included, that the draft model has not read.
        """
        device = self._model.device
        proposed = [
            self._suffix.continue_behind(each.row, each.tokens, each.length - len(each.tokens) - 1) for each in chains
        ]
        fed = [
            [*each.row.tokens[-unfed:], *each.tokens][-unfed:] + more
            for each, more in zip(chains, proposed, strict=True)
        ]
        starts = [len(each.row.tokens) + len(each.tokens) - unfed for each in chains]
        counts = [len(more) for more in proposed]
        width = max(counts)
        padded = to_device([tokens + [0] * (unfed + width - len(tokens)) for tokens in fed], device)
        slots = [each.row.slot for each in chains]
        logits = self._steps.fit(self._model.forward(padded, slots, starts))[:, unfed - 1 :]
        logits = self._adjusted(chains, proposed, logits[:, : width + 1])
        verdict, weights = self._judge(chains, logits, padded[:, unfed:], counts)
        judged = torch.stack([verdict.end, verdict.last], 1).tolist()
        for place, (each, more, (accepted, last)) in enumerate(zip(chains, proposed, judged, strict=True)):
            each.tokens += [*more[:accepted], last]
            if weights is not None and each.row.draws:
                each.q.append(weights[place, : accepted + 1])

    def _judge(
        self, chains: Sequence[_Chain], logits: Tensor, drafted: Tensor, counts: Sequence[int]
    ) -> tuple[Verdict, Tensor | None]:
        """The draft model's verdict on the proposed tokens, and its distributions [b, n + 1, V] if a row draws its
        draft."""
        firsts = [len(each.tokens) for each in chains]
        u = np.zeros((len(chains), drafted.shape[1], BRANCHES))  # of drawn tokens, of which there are none
        u_own = np.stack([each.u[first:][: 1 + drafted.shape[1]] for each, first in zip(chains, firsts, strict=True)])
        settings = SamplingRows.of([replace(each.row.drafting, lenience=1.0) for each in chains], logits.device)
        mask = TreeMask.of([chain(count) for count in counts], 1 + drafted.shape[1], logits.device)
        draws = to_device(u, logits.device), to_device(u_own, logits.device)
        verdict = accept(logits, Drafted(drafted, mask), settings, *draws)
        return verdict, None if settings.flags.all_greedy else standardise(logits, settings)

    def _adjusted(self, chains: Sequence[_Chain], proposed: Sequence[Sequence[int]], logits: Tensor) -> Tensor:
        """Logits [b, n + 1, V] with the bias and penalties of each row."""
        if not any(each.row.request.sampling.adjusts_drafts for each in chains):
            return logits
        logits = logits.clone()
        for own, each, more in zip(logits, chains, proposed, strict=True):
            adjustment = self._penalties.of([each.row], drafts=True)
            if adjustment is not None:
                judged = own[None, : len(more) + 1]
                drafted = to_device([[*each.tokens, *more]], logits.device, torch.long)
                judged.copy_(adjustment.apply(judged, drafted, first=len(each.tokens)))
        return logits


def build(context: BuildContext, name: str) -> HierarchicalDrafter:  # noqa: ARG001
    """The drafter for an engine: the first draft model, with the suffix drafter."""
    return HierarchicalDrafter(members(context)[0], context.drafters["suffix"], context.target)
