"""Random drafter: tokens of the vocabulary at random, which still helps a little (Leviathan et al. 2023, section 3.6).

Its α is the mean of Σ min(p, 1/V): 1/V where the target is greedy, more the flatter p is. By Corollary 3.9 it speeds
decoding up where that is more than c, what a draft step costs: nearly nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specchat.engine.decoding.drafter import Drafter
from specchat.engine.decoding.proposal import Draft
from specchat.engine.decoding.tree import chain
from specchat.engine.device.device import to_device
from specchat.engine.drafters.build_context import BuildContext
from specchat.engine.sampling.rng import Stream, uniforms
from specchat.engine.sampling.sampler import one_hot
from specchat.engine.sequence.sequence import SequenceState


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

    def propose(self, rows: Sequence[SequenceState], gammas: Sequence[int], *_: object, **__: object) -> Draft:
        """`gammas[i]` tokens for each row; q is one-hot where drafts are not drawn."""
        steps = max(gammas)
        u = uniforms([row.seed for row in rows], [row.rounds for row in rows], Stream.DRAFT, steps)
        tokens = to_device((u * self._vocabulary).astype("int64"), self._device)
        certain, q = [not row.draws for row in rows], None
        if not all(certain):
            mask = to_device(certain, self._device)[:, None, None]
            q = torch.where(mask, one_hot(tokens, self._vocabulary), 1 / self._vocabulary)
        return Draft(tokens, [chain(gamma) for gamma in gammas], q)


def build(context: BuildContext, name: str) -> RandomDrafter:  # noqa: ARG001
    """The drafter for an engine."""
    return RandomDrafter(context.model.vocab_size, context.target.device)
