"""Distributions on the kernels: tokens drawn from logits, and drafts of sampled rows judged by them.

They are those of `engine.sampling.sampler` but for rounding. Their bits depend on a row's own logits and settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import pointer
from dataclasses import dataclass
from functools import lru_cache
from math import inf, log
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.kernels.library import library
from specchat.engine.kernels.structures import CDraw, CRow, CRows, CSampling
from specchat.engine.request import COLDEST, Sampling

if TYPE_CHECKING:
    from ctypes import _Pointer


@dataclass(frozen=True, eq=False, slots=True)
class DrawRequest:
    """Tokens to be drawn from one row of logits, each without those before it."""

    logits: Tensor
    """[V'], float32, contiguous."""
    sampling: Sampling
    """Not greedy."""
    u: Sequence[float]
    """A uniform for each."""
    q: Tensor
    """[V'], float32, contiguous: gets the distribution, 0 throughout where a logit is not a number."""


def draw(wanted: Sequence[DrawRequest], threads: int) -> list[list[int]]:
    """Places of the tokens drawn, fewer where no weight was left.

    Args:
        wanted: of rows of the same V'.
        threads: how many compute, this one included.
    """
    places = [np.empty(len(each.u), dtype=np.int32) for each in wanted]
    uniforms = [np.array(each.u, dtype=np.float64) for each in wanted]
    draws = (CDraw * len(wanted))(
        *(
            CDraw(each.logits.data_ptr(), c_settings(each.sampling), len(u), u.ctypes.data, each.q.data_ptr(), drawn)
            for each, u, drawn in zip(wanted, uniforms, (part.ctypes.data for part in places), strict=True)
        )
    )
    library().draw_tokens(draws, len(wanted[0].logits), threads)
    return [[place for place in part.tolist() if place >= 0] for part in places]


@dataclass(frozen=True, eq=False, slots=True)
class SampledRow:
    """A sampled row and its draft. Node 0 is the row's last token, node i the i-th drafted one."""

    logits: Tensor
    """[K + 1, V], float32, contiguous: the target's behind every node."""
    sampling: Sampling
    """Lossless, not greedy, without penalties."""
    drafted: Sequence[int]
    """[K]"""
    parents: Sequence[int]
    """[K], the node that each is offered behind."""
    q: Tensor | None
    """[nodes, V'], float32, contiguous: what the tokens behind a node were drawn from; None where they were certain."""
    by_overlap: bool
    """Whether β is Σ min(p, q), as for chains."""
    u: NDArray[np.float64]
    """[n, branches]: uniforms of the tokens offered for a position, by its number and their rank."""
    u_last: float


@dataclass(frozen=True, slots=True)
class SampledVerdict:
    """What became of a row's draft."""

    path: list[int]
    """Nodes that were accepted."""
    last: int
    """Correction, bonus or plain token; -1 where a logit is not a number."""
    p: list[float]
    """p(x) of every token judged, in order: those offered behind a node up to the accepted one, or all of them."""
    q: list[float]
    """The same of q(x)."""
    beta: list[float]
    """Per position, the chance that one of the tokens offered is accepted."""


def judge(
    rows: Sequence[SampledRow], vocabulary: int, support: tuple[Tensor, Tensor] | None, threads: int
) -> list[SampledVerdict]:
    """Judge the drafts of rows (`engine.decoding.verify.tree_acceptance` and `chain_acceptance`).

    Args:
        rows: those with q drew from the same tokens.
        vocabulary: V.
        support: those V' tokens, and the place among them of each of the V; None for all.
        threads: how many compute, this one included.

    Raises:
        KernelError: a token is not in the vocabulary.
    """
    known = [_Known(row) for row in rows]
    c = (CRow * len(rows))(*(each.c for each in known))
    tokens, places = (part.data_ptr() for part in support) if support else (None, None)
    size = len(support[0]) if support else vocabulary
    library().judge(
        CRows(
            count=len(rows), rows=c, vocabulary=vocabulary, support=size, tokens=tokens, places=places, threads=threads
        )
    )
    return [each.verdict(row) for each, row in zip(known, c, strict=True)]


class _Known:
    """One row as the library takes it; valid while this object lives."""

    def __init__(self, row: SampledRow) -> None:
        count = len(row.drafted)
        self._drafted = np.array(row.drafted, dtype=np.int64)
        self._ints = np.array([*row.parents, *row.parents], dtype=np.int32)
        self._floats = np.empty((3, count), dtype=np.float32)
        self._path = self._ints[count:]
        p, q, beta = (part.ctypes.data for part in self._floats)
        self.c = CRow(
            logits=row.logits.data_ptr(),
            sampling=c_settings(row.sampling),
            count=count,
            drafted=self._drafted.ctypes.data,
            parents=self._ints.ctypes.data,
            q=None if row.q is None else row.q.data_ptr(),
            by_overlap=row.by_overlap,
            u_stride=row.u.shape[1],
            u=row.u.ctypes.data,
            u_last=row.u_last,
            path=self._path.ctypes.data,
            p=p,
            q_of=q,
            beta=beta,
        )

    def verdict(self, c: CRow) -> SampledVerdict:
        """What the library has written."""
        p, q = self._floats[:2, : c.judged].tolist()
        beta = self._floats[2, : c.positions].tolist()
        return SampledVerdict(self._path[: c.accepted].tolist(), c.last, p, q, beta)


@lru_cache(maxsize=64)
def c_settings(sampling: Sampling) -> _Pointer[CSampling]:
    """Settings as the library takes them."""
    return pointer(
        CSampling(
            temperature=max(sampling.temperature, COLDEST),
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            log_min_p=log(sampling.min_p) if sampling.min_p else -inf,
        )
    )
