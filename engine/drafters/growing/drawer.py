"""Draws of one row's tree from a drafter's distributions, on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specchat.engine.drafters.growing.growth import Growth, Offered
from specchat.engine.kernels import sampling as kernels
from specchat.engine.kernels.sampling import DrawRequest
from specchat.engine.request import MAX_GAMMA
from specchat.engine.sampling.rng import Stream, uniforms
from specchat.engine.sampling.sampler import draw_different, standardise
from specchat.engine.sampling.sampling_rows import SamplingRows
from specchat.engine.sequence.sequence import SequenceState

Draw = Callable[[DrawRequest], Sequence[int]]
"""Places of the tokens drawn, fewer where no weight was left."""


def by_kernels(wanted: DrawRequest) -> list[int]:
    """Draw by the kernels, for packed models."""
    return kernels.draw([wanted], torch.get_num_threads())[0]


def by_torch(wanted: DrawRequest) -> list[int]:
    """Draw as the sampler does."""
    settings = SamplingRows.of([wanted.sampling], wanted.logits.device)
    wanted.q.copy_(standardise(wanted.logits[None, None], settings)[0, 0].nan_to_num_())
    u = torch.tensor(wanted.u, dtype=torch.float64)
    places = draw_different(wanted.q[None, None], u[None, None])[0, 0].tolist()
    left = [place for rank, place in enumerate(places) if place not in places[:rank]]
    weights = wanted.q[left].tolist()
    return [place for place, weight in zip(left, weights, strict=True) if weight > 0]


class Drawer:
    """The draws of one row's round.

    Args:
        row: not greedy.
        q: [`MAX_GAMMA`, V'], float32, contiguous: by node, gets what the tokens after it are drawn from.
        draw: draws tokens.
    """

    def __init__(self, row: SequenceState, q: Tensor, draw: Draw = by_kernels) -> None:
        self._sampling = row.request.sampling
        self._u = uniforms([row.seed], [row.rounds], Stream.DRAFT, MAX_GAMMA)[0].tolist()
        self._draw = draw
        self.q = q

    def draw(self, growth: Growth, offers: Sequence[Offered], logits: Tensor, known: Sequence[int]) -> list[Offered]:
        """Draw as many tokens after each node as are to be offered there, each without those before it.

        Args:
            growth: gets the tokens.
            offers: those after one node next to each other.
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
            places = self._draw(DrawRequest(flat[node.source], self._sampling, u, self.q[node.place]))
            for offer, place in zip(mine, places, strict=False):
                growth.add(offer, known[place])
                added.append(offer)
        return added
