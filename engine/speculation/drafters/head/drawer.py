"""Draws of one row's tree from the head's distributions, on the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.request import MAX_GAMMA
from specchat.engine.sampling.rng import Stream, uniforms
from specchat.engine.sampling.sampler import SamplingRows, standardise
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.speculation.drafters.head.growth import Growth, Offered


class Drawer:
    """The draws of one row's round.

    Args:
        row: not greedy.
        device: of the logits.
    """

    def __init__(self, row: SequenceState, device: torch.device) -> None:
        self._settings = SamplingRows.of([row.request.sampling], device)
        self._u = uniforms([row.seed], [row.rounds], Stream.DRAFT, MAX_GAMMA)[0].tolist()
        self.distributions: dict[int, Tensor] = {}
        """By node, [V'], float32: what the tokens behind it were drawn from."""

    def draw(self, growth: Growth, offers: Sequence[Offered], logits: Tensor, known: Sequence[int]) -> list[Offered]:
        """Draw as many tokens behind each node as are to be offered there, each without those before it.

        Args:
            growth: gets the tokens.
            offers: those behind one node next to each other.
            logits: [B, P, V'], of all places scored.
            known: the V' tokens.

        Returns:
            The offers that got a token: a distribution may have fewer.
        """
        flat = logits.flatten(0, 1)
        added: list[Offered] = []
        for node in dict.fromkeys(offer.node for offer in offers):
            q = standardise(flat[None, node.source : node.source + 1], self._settings)[0, 0]
            self.distributions[node.place] = q
            mine = [offer for offer in offers if offer.node is node]
            first = len(growth.tokens)
            for offer, place in zip(mine, draw_different(q.numpy(), self._u[first : first + len(mine)]), strict=False):
                growth.add(offer, known[place])
                added.append(offer)
        return added


def draw_different(weights: NDArray[np.float32], u: Sequence[float]) -> list[int]:
    """Indices drawn from weights [V'] by uniforms, each without those before it; fewer where no weight is left."""
    left = weights.astype(np.float64)
    drawn: list[int] = []
    for each in u:
        cumulative = left.cumsum()
        total = cumulative[-1]
        if not total > 0:
            break
        # Rounding must not raise a point to the total, which no entry exceeds.
        point = min(each * total, np.nextafter(total, 0.0))
        drawn.append(int(np.searchsorted(cumulative, point, side="right")))
        left[drawn[-1]] = 0.0
    return drawn
