"""Draws of one row's tree from the head's distributions, on the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specchat.engine.kernels.sampling import Wanted, draw
from specchat.engine.request import MAX_GAMMA
from specchat.engine.sampling.rng import Stream, uniforms
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.speculation.drafters.head.growth import Growth, Offered


class Drawer:
    """The draws of one row's round.

    Args:
        row: not greedy.
        q: [`MAX_GAMMA`, V'], float32, contiguous: by node, gets what the tokens behind it are drawn from.
    """

    def __init__(self, row: SequenceState, q: Tensor) -> None:
        self._sampling = row.request.sampling
        self._u = uniforms([row.seed], [row.rounds], Stream.DRAFT, MAX_GAMMA)[0].tolist()
        self.q = q

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
            mine = [offer for offer in offers if offer.node is node]
            first = len(growth.tokens)
            u = self._u[first : first + len(mine)]
            places = draw([Wanted(flat[node.source], self._sampling, u, self.q[node.place])], torch.get_num_threads())
            for offer, place in zip(mine, places[0], strict=False):
                growth.add(offer, known[place])
                added.append(offer)
        return added
