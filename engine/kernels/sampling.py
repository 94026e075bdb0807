"""Sampling on the kernels: drawing tokens from logits, and verifying the drafts of sampled rows.

Distributions equal those of `engine.sampling.sampler` up to rounding. Results are batch-invariant.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import pointer
from dataclasses import dataclass
from functools import lru_cache
from math import inf, log
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch import Tensor

from specchat.engine.kernels.library import library
from specchat.engine.kernels.structures import CDraw, CRow, CRows, CSampling
from specchat.engine.request import COLDEST, Sampling

if TYPE_CHECKING:
    from ctypes import _Pointer


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


class SampledRow(NamedTuple):
    """A sampled row and its draft. Node 0 is the row's last token, node i the i-th drafted one."""

    logits: Tensor
    """[K + 1, V], float32, contiguous: the target's logits after each node."""
    sampling: Sampling
    """Lossless, not greedy; penalties are in the logits already."""
    drafted: Sequence[int]
    """[K]"""
    parents: Sequence[int]
    """[K], the parent of each."""
    q: Tensor | None
    """[nodes, V'], float32, contiguous: distribution of each node's children; None if they were not drawn."""
    by_overlap: bool
    """Whether β is Σ min(p, q), as for chains; else the probability that one of the children is accepted."""
    u: Sequence[float]
    """Uniform draws, `branches` per position, by rank among the children."""
    branches: int
    u_last: float
    """Uniform draw of the last token."""
    seed: int = 0
    """Of XTC, and the position in the text of what follows node 0."""
    position: int = 0


@dataclass(frozen=True, slots=True)
class SampledVerdict:
    """Result of verifying a row's draft."""

    path: list[int]
    """Accepted nodes."""
    last: int
    """Correction, bonus or plain token; -1 if a logit is NaN."""
    p: list[float]
    """p(x) of every tested token, in order."""
    q: list[float]
    """q(x) of the same tokens."""
    beta: list[float]
    """β of every tested position."""


def judge(
    rows: Sequence[SampledRow], vocabulary: int, support: tuple[Tensor, Tensor] | None, threads: int
) -> list[SampledVerdict]:
    """Verify the drafts of sampled rows; tested against `engine.decoding.acceptance`.

    Args:
        rows: rows with q have the same draft vocabulary.
        vocabulary: V.
        support: draft vocabulary: its V' token ids, and the index of each of the V tokens in it; None if V' = V.
        threads: number of threads, the caller included.

    Raises:
        KernelError: a token is outside the vocabulary.
    """
    arrays = [_RowArrays(row) for row in rows]
    c = (CRow * len(rows))(*(each.c for each in arrays))
    tokens, places = (part.data_ptr() for part in support) if support else (None, None)
    size = support[0].shape[0] if support else vocabulary
    library().c.sk_judge(
        CRows(
            count=len(rows), rows=c, vocabulary=vocabulary, support=size, tokens=tokens, places=places, threads=threads
        )
    )
    return [each.verdict(row) for each, row in zip(arrays, c, strict=True)]


class _RowArrays:
    """`sk_row` of one row; valid while this object lives."""

    def __init__(self, row: SampledRow) -> None:
        count = len(row.drafted)
        # In arrays of the standard library: for a short pass, numpy's time per call is noticeable.
        self._drafted, self._u = array("q", row.drafted), array("d", row.u)
        self._ints, self._floats = array("i", (*row.parents, *row.parents)), array("f", bytes(12 * count))
        parents, p = self._ints.buffer_info()[0], self._floats.buffer_info()[0]
        self.c = CRow(
            logits=row.logits.data_ptr(),
            sampling=c_settings(row.sampling),
            count=count,
            drafted=self._drafted.buffer_info()[0],
            parents=parents,
            q=None if row.q is None else row.q.data_ptr(),
            by_overlap=row.by_overlap,
            u_stride=row.branches,
            u=self._u.buffer_info()[0],
            u_last=row.u_last,
            seed=row.seed,
            position=row.position,
            path=parents + 4 * count,
            p=p,
            q_of=p + 4 * count,
            beta=p + 8 * count,
        )

    def verdict(self, c: CRow) -> SampledVerdict:
        """The result, after the call."""
        count = len(self._drafted)
        ends = ((0, c.judged), (count, c.judged), (2 * count, c.positions))
        p, q, beta = (self._floats[first : first + length].tolist() for first, length in ends)
        return SampledVerdict(self._ints[count : count + c.accepted].tolist(), c.last, p, q, beta)


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
