"""Random drafter: tokens of the vocabulary at random, which still helps a little (Leviathan et al. 2023, section 3.6).

Its α is the mean of Σ min(p, 1/V): 1/V where the target is greedy, more the flatter p is. By Corollary 3.9 it speeds
decoding up where that is more than c, what a draft step costs: nearly nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specchat.engine.decoding.draft import Draft, RowOrder
from specchat.engine.decoding.drafter import Drafter
from specchat.engine.device.device import to_device
from specchat.engine.drafters.build_context import BuildContext
from specchat.engine.drafters.model_steps import drafted_chains
from specchat.engine.sampling.rng import Stream, uniforms


class RandomDrafter(Drafter):
    """Each token is as likely as any other, whatever the text.

    Args:
        vocabulary: V.
        device: of the target.
    """

    name = "random"

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        self._vocabulary = vocabulary
        self._device = device

    def propose(self, orders: Sequence[RowOrder]) -> list[Draft]:
        """γ tokens for each row."""
        rows, steps = [order.row for order in orders], max(order.gamma for order in orders)
        u = uniforms([row.seed for row in rows], [row.rounds for row in rows], Stream.DRAFT, steps)
        tokens, size = to_device((u * self._vocabulary).astype("int64"), self._device), self._vocabulary
        return drafted_chains(
            orders, tokens, torch.full((1, 1, 1), 1 / size, device=self._device).expand(*u.shape, size)
        )


def build(context: BuildContext, name: str) -> RandomDrafter:  # noqa: ARG001
    """The drafter for an engine."""
    return RandomDrafter(context.model.vocab_size, context.target.device)
