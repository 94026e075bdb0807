"""Drawn chains of a counted table in fixed shapes: a draft step is a CUDA graph, and hands its token to the next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.backends.graph_pool import GraphPool
from specchat.engine.backends.region import Numbers, Region, Regions
from specchat.engine.drafters.model_steps import Network
from specchat.engine.request import MAX_GAMMA
from specchat.engine.sampling.sampler import draw, standardise
from specchat.engine.sampling.sampling_rows import NUMBERS, SamplingFlags, SamplingRows, coarse_flags, setting_numbers
from specchat.engine.sequence.sequence import SequenceState

_MOST = 128
"""Shapes that are kept."""


class StaticChains:
    """The draft steps of a table on a GPU.

    Args:
        network: the table; it looks at the last token alone.
        vocabulary: V, of its logits.
        pool: makes the graphs.
        slots: the most rows.
    """

    def __init__(self, network: Network, vocabulary: int, pool: GraphPool, slots: int) -> None:
        self._network = network
        self._vocabulary = vocabulary
        self._regions = Regions(pool, slots, _MOST)

    @property
    def bytes(self) -> int:
        """Memory of distributions."""
        return self._regions.bytes

    @torch.inference_mode()
    def capture(self) -> None:
        """Capture the step of rows that are not all greedy, for all numbers of rows."""
        for rows in reversed(self._regions.counts):
            for flags in coarse_flags(rows)[1:]:
                self._step(rows, flags)

    @torch.inference_mode()
    def draft(self, rows: Sequence[SequenceState], steps: int, u: NDArray[np.float64]) -> tuple[Tensor, Tensor]:
        """Tokens [B, steps] and their distributions [B, steps, V].

        Args:
            rows: B, not all greedy.
            steps: at least 1.
            u: [B, steps], uniforms.
        """
        sampling, count = [row.request.sampling for row in rows], self._regions.count(len(rows))
        step = self._step(count, SamplingFlags.of(sampling).strict.coarse(count))
        last = [[row.tokens[-1]] for row in rows]
        step.numbers.send({"at": [0], "tokens": last, "u": u, "settings": setting_numbers(sampling)})
        for _ in range(steps):
            step.run()
        return step.numbers["tokens"][: len(rows), 1 : steps + 1], self._q(count)[: len(rows), :steps]

    def _step(self, rows: int, flags: SamplingFlags) -> Region:
        return self._regions.of((rows, flags), lambda: self._region(rows, flags))

    def _region(self, rows: int, flags: SamplingFlags) -> Region:
        numbers = Numbers(
            self._regions.pool.device,
            {"at": (1,), "tokens": (rows, MAX_GAMMA + 1)},
            {"u": (rows, MAX_GAMMA), "settings": (rows, NUMBERS)},
        )
        q = self._q(rows)

        def run() -> list[Tensor]:
            at, tokens = numbers["at"], numbers["tokens"]
            logits = self._network.forward(tokens.gather(1, at.expand(rows, 1)), (), ())
            drawn_from = standardise(logits, SamplingRows.from_numbers(numbers["settings"], flags))
            q.index_copy_(1, at, drawn_from)
            token = draw(drawn_from[:, 0], numbers["u"].gather(1, at.expand(rows, 1))[:, 0])[:, None]
            tokens.scatter_(1, (at + 1).expand(rows, 1), token)
            at.add_(1).clamp_(max=MAX_GAMMA - 1)  # trials run it more often than drafts do
            return []

        return self._regions.region(numbers, {}, run)

    def _q(self, rows: int) -> Tensor:
        shape = rows, MAX_GAMMA, self._vocabulary
        return self._regions.shared("q", shape, self._regions.rows * MAX_GAMMA * self._vocabulary, torch.float32)
