"""Sampling on the kernels: settings, and drawing tokens from logits.

Distributions equal the ones of `engine.sampling.sampler` up to rounding. Results are batch-invariant.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import _Pointer, pointer
from dataclasses import dataclass
from functools import lru_cache
from math import inf, log

import numpy as np
from torch import Tensor

from specchat.engine.kernels.library import library
from specchat.engine.kernels.structures import CDraw, CSampling
from specchat.engine.request import COLDEST, Sampling


@dataclass(frozen=True, eq=False, slots=True)
class DrawRequest:
    """Tokens to draw from one row of logits, without replacement."""

    logits: Tensor
    """[V'], float32, contiguous."""
    sampling: Sampling
    """Not greedy."""
    u: Sequence[float]
    """One uniform draw per token."""
    q: Tensor
    """[V'], float32, contiguous: output, the distribution; all 0 if a logit is NaN."""
    seed: int = 0
    """Seed of XTC."""
    position: int = 0


def draw(wanted: Sequence[DrawRequest], threads: int) -> list[list[int]]:
    """Indices (0 to V' - 1) of the tokens drawn; fewer if the distribution has fewer tokens.

    Args:
        wanted: rows of the same V'.
        threads: number of threads, the caller included.
    """
    places = [np.empty(len(each.u), dtype=np.int32) for each in wanted]
    uniforms = [np.array(each.u, dtype=np.float64) for each in wanted]
    draws = (CDraw * len(wanted))(
        *(
            CDraw(
                logits=each.logits.data_ptr(),
                sampling=c_settings(each.sampling),
                count=len(u),
                u=u.ctypes.data,
                q=each.q.data_ptr(),
                seed=each.seed,
                position=each.position,
                places=part.ctypes.data,
            )
            for each, u, part in zip(wanted, uniforms, places, strict=True)
        )
    )
    library().c.sk_draw_tokens(draws, len(draws), len(wanted[0].logits), threads)
    return [[place for place in part.tolist() if place >= 0] for part in places]


@lru_cache(maxsize=64)
def c_settings(sampling: Sampling) -> _Pointer[CSampling]:
    """Pointer to `sk_sampling`, kept alive by the cache."""
    return pointer(
        CSampling(
            temperature=max(sampling.temperature, COLDEST),
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            xtc_probability=sampling.xtc_probability if sampling.xtc else 0.0,
            xtc_threshold=sampling.xtc_threshold,
            log_min_p=log(sampling.min_p) if sampling.min_p else -inf,
        )
    )
