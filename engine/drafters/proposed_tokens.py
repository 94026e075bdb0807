"""Verdicts of a draft model on tokens that are proposed to it; on a GPU a CUDA graph per shape."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from specchat.engine.backends.cuda_graphs import GraphRunner
from specchat.engine.backends.region import Numbers, Region, Regions
from specchat.engine.decoding.verify.chain_acceptance import accept, accept_greedy
from specchat.engine.device.to_device import to_device
from specchat.engine.request import MAX_GAMMA, Sampling
from specchat.engine.sampling.sampler import most_likely, standardise
from specchat.engine.sampling.sampling_rows import NUMBERS, SamplingFlags, SamplingRows, coarse_flags, setting_numbers

_MOST = 128
"""Shapes that are kept."""


class ProposedTokens:
    """Judges tokens that were not drawn, by speculative sampling.

    Args:
        passes: of the draft model, on a GPU; None on a CPU.
        vocabulary: V.
    """

    def __init__(self, passes: GraphRunner | None, vocabulary: int) -> None:
        self._regions = Regions(passes.pool, passes.cache.slots, _MOST) if passes else None
        self._vocabulary = vocabulary

    @property
    def bytes(self) -> int:
        """Memory of logits and distributions that graphs share."""
        return self._regions.bytes if self._regions else 0

    def capture(self) -> None:
        """On a GPU, capture all shapes."""
        if self._regions is None:
            return
        for rows in reversed(self._regions.counts):
            for flags in coarse_flags(rows):
                self._region(self._regions, rows, flags)

    def judge(
        self,
        sampling: Sequence[Sampling],
        logits: Tensor,
        drafted: Tensor,
        counts: Sequence[int],
        u: NDArray[np.float64],
        u_last: NDArray[np.float64],
    ) -> tuple[Tensor, Tensor | None]:
        """How many are accepted and the token behind them [b, 2], and the distributions [b, n + 1, V].

        There are no distributions where all rows are greedy. On a GPU both are there until the next call.

        Args:
            sampling: b settings.
            logits: [b, n + 1, V], before and behind each token.
            drafted: [b, n].
            counts: [b], how many of them count.
            u: [b, n], uniforms.
            u_last: [b].
        """
        if self._regions is None:
            settings = SamplingRows.of(sampling, logits.device)
            draws = to_device(u, logits.device), to_device(u_last, logits.device)
            return _judged(settings, logits, drafted, to_device(counts, logits.device), *draws)
        rows = self._regions.count(len(sampling))
        region = self._region(self._regions, rows, SamplingFlags.of(sampling).strict.coarse(rows))
        numbers: dict[str, ArrayLike] = {
            "counts": counts,
            "u": u,
            "u_last": u_last,
            "settings": setting_numbers(sampling),
        }
        made, *weights = (part[: len(sampling)] for part in region(numbers, {"logits": logits, "drafted": drafted}))
        return made, weights[0] if weights else None

    def _region(self, regions: Regions, rows: int, flags: SamplingFlags) -> Region:
        return regions.of((rows, flags), lambda: self._make(regions, rows, flags))

    def _make(self, regions: Regions, rows: int, flags: SamplingFlags) -> Region:
        device, size = regions.pool.device, (MAX_GAMMA + 1) * self._vocabulary
        places = rows, MAX_GAMMA + 1, self._vocabulary
        reals = {"u": (rows, MAX_GAMMA), "u_last": (rows,), "settings": (rows, NUMBERS)}
        numbers = Numbers(device, {"counts": (rows,)}, reals)
        inputs = {
            "logits": regions.shared("logits", places, regions.rows * size, torch.float32),
            "drafted": torch.zeros(rows, MAX_GAMMA, dtype=torch.long, device=device),
        }

        def run() -> list[Tensor]:
            settings = SamplingRows.from_numbers(numbers["settings"], flags)
            drawn = numbers["u"], numbers["u_last"]
            made, weights = _judged(settings, inputs["logits"], inputs["drafted"], numbers["counts"], *drawn)
            return [made] if weights is None else [made, weights]

        results = [torch.zeros(rows, 2, dtype=torch.long, device=device)]
        if not flags.all_greedy:
            results.append(regions.shared("weights", places, regions.rows * size, torch.float32))
        return regions.region(numbers, inputs, run, results)


def _judged(
    settings: SamplingRows, logits: Tensor, drafted: Tensor, counts: Tensor, u: Tensor, u_last: Tensor
) -> tuple[Tensor, Tensor | None]:
    weights = None
    if settings.flags.all_greedy:
        verdict = accept_greedy(most_likely(logits), drafted, counts)
    else:
        weights = standardise(logits, settings)
        verdict = accept(weights, drafted, counts, u, u_last)
    return torch.stack([verdict.accepted, verdict.last], 1), weights
