"""Sampling on the kernels: settings, drawing tokens from logits, and bias and penalties.

Distributions equal those of `engine.sampling.sampler` up to rounding. Results are batch-invariant.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from ctypes import pointer
from dataclasses import dataclass
from functools import lru_cache
from math import inf, log
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from specchat.engine.kernels.library import library
from specchat.engine.kernels.structures import CDraw, CPenalties, CSampling
from specchat.engine.request import COLDEST, Sampling

if TYPE_CHECKING:
    from ctypes import _Pointer

_ROOM = 1024
"""Room for tokens after a text when its memory grows; it grows when less than half of it is left. The rounds of a call
add fewer."""


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
    """Of XTC, and the position in the text."""
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


def break_flags(texts: Sequence[str], names: Iterable[str]) -> array[int]:
    """Flags [V], whether the name of a token contains one of the texts: DRY's sequence breakers."""
    return array("B", [any(text in name for text in texts) for name in names])


class RowPenalties:
    """`sk_penalties` of one row, and what has to live as long.

    Args:
        sampling: with bias or penalties.
        tokens: prompt and reply, which grows.
        prompt: tokens of the prompt.
        breaks: `break_flags` of its sequence breakers; None without DRY.
    """

    def __init__(
        self, sampling: Sampling, tokens: Sequence[int], prompt: int, breaks: array[int] | None = None
    ) -> None:
        self.tokens = tokens
        self._text, self._known = array("q"), 0
        biased, bias = array("q", [t for t, _ in sampling.logit_bias]), array("f", [b for _, b in sampling.logit_bias])
        self._kept = (biased, bias, breaks)
        self._c = CPenalties(
            prompt=prompt,
            biased=biased.buffer_info()[0],
            bias=bias.buffer_info()[0],
            bias_count=len(bias),
            repetition=sampling.repetition_penalty,
            presence=sampling.presence_penalty,
            frequency=sampling.frequency_penalty,
            dry_multiplier=sampling.dry_multiplier if sampling.dry else 0.0,
            dry_base=sampling.dry_base,
            dry_allowed=sampling.dry_allowed_length,
            dry_last=sampling.dry_penalty_last_n,
            breaks=breaks.buffer_info()[0] if breaks else None,
        )
        self._pointer = pointer(self._c)

    def c(self) -> _Pointer[CPenalties]:
        """For the text as it is now."""
        count = len(self.tokens)
        if len(self._text) < count + _ROOM // 2:
            self._text.extend([0] * (count + _ROOM - len(self._text)))
        self._text[self._known : count] = array("q", self.tokens[self._known :])
        self._known = self._c.count = count
        self._c.text = self._text.buffer_info()[0]
        return self._pointer
