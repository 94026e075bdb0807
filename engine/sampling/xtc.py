"""XTC, exclude top choices: a token is sometimes drawn without the likeliest ones (p-e-w 2024, pull request 6335 of
text-generation-webui).

Whether a position does so is drawn by its place in the text, from a separate stream. So target and drafters agree
about it, and a reply does not depend on what was drafted: given these draws, each position has one distribution.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.sampling.rng import Stream, uniform
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.settings import Sampling

OFF = 1.0
"""A threshold that excludes nothing."""


def threshold(sampling: Sampling, seed: int, position: int) -> float:
    """Threshold at a position of the text; `OFF` where its draw leaves all tokens in."""
    on = sampling.xtc and uniform(seed, position, Stream.XTC, 0) < sampling.xtc_probability
    return sampling.xtc_threshold if on else OFF


def thresholds(rows: Sequence[SequenceState], depths: Iterable[Sequence[int]], width: int) -> NDArray[np.float64]:
    """Thresholds [B, T] after each row's text and `depths` drafted tokens, padded to T = `width`."""
    found = np.full((len(rows), width), OFF)
    for row, own, deep in zip(rows, found, depths, strict=True):
        if row.request.sampling.xtc:
            end = len(row.tokens)
            own[: len(deep)] = [threshold(row.request.sampling, row.seed, end + depth) for depth in deep]
    return found


def without_top_choices(probabilities: Tensor, limits: Tensor) -> Tensor:
    """Keep only the least likely of the tokens that reach the threshold, and its ties.

    Args:
        probabilities: [B, T, V].
        limits: thresholds [B, T] or [B, 1].
    """
    limits = limits[..., None]
    edge = probabilities.where(probabilities >= limits, torch.inf).amin(-1, keepdim=True)
    kept = probabilities.masked_fill(probabilities > edge, 0.0)
    return torch.where(limits < OFF, kept / kept.sum(-1, keepdim=True), probabilities)
