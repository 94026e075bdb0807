"""Arguments and results of growing draft trees by a head on packed weights."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import Array
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from specchat.engine.kernels.library import KernelError
from specchat.engine.kernels.sampling import c_settings
from specchat.engine.kernels.structures import CGrowing, CGrowth, CRead
from specchat.engine.request import Sampling


@dataclass(frozen=True, slots=True)
class GrowthRules:
    """Settings for all trees of a call."""

    edges: Sequence[float]
    """Lower limits of the confidence grades, as probabilities."""
    longest: int
    """Maximum number of tokens per tree."""
    branches: int
    """Maximum number of children per node."""
    least: float
    """Minimum cost of a token."""
    hope: float
    """Probability that the likeliest child of an accepted node is accepted."""
    stream: int
    """Random number stream."""


class TreeRequest(NamedTuple):
    """The tree to grow for one row."""

    slot: int
    begin: int
    """First column that the head has to read."""
    ids: Sequence[int]
    """Tokens from that column on, at least one."""
    depth: int
    """Maximum depth."""
    line: int
    """Depth that is drafted regardless of cost."""
    repeatable: bool
    """Whether its growth must not depend on other rows."""
    passes: Sequence[float]
    """[longest + 1], cost of verifying 0, 1, … tokens."""
    step: float
    """Cost of a draft step."""
    rates: Sequence[float]
    """[grades], probability that a token is accepted."""
    sampling: Sampling | None
    """Settings of a row whose tokens are sampled; None takes the likeliest tokens."""
    seed: int
    number: int
    """Round number, for the random numbers."""


class GrownTree(NamedTuple):
    """The tree of one row."""

    tokens: list[int]
    parents: list[int]
    """Parent of each token: 0 is the row's last token, i the i-th drafted one."""
    grades: list[int]


class TargetStates(NamedTuple):
    """Hidden states of the target for some tokens of a slot."""

    slot: int
    first: int
    """Column of the first token."""
    tapped: Tensor
    """[n, taps x hidden], float32."""


class Growth:
    """`sk_growing`: the trees of all rows.

    Args:
        read: new hidden states of the target.
        wanted: [B].
        q: [B, longest, V'], float32, contiguous: output, the distribution of each node's children; None if no row is
            sampled.
        known: [V'], int64, contiguous: draft vocabulary as target token ids.
        rules: for all trees.
        threads: number of threads, the caller included.

    Raises:
        KernelError: arguments do not fit.
    """

    def __init__(
        self,
        read: Sequence[TargetStates],
        wanted: Sequence[TreeRequest],
        q: Tensor | None,
        known: Tensor,
        rules: GrowthRules,
        threads: int,
    ) -> None:
        count, longest, grades = len(wanted), rules.longest, len(rules.edges) + 1
        if any(len(tree.passes) != longest + 1 or len(tree.rates) != grades or not tree.ids for tree in wanted):
            raise KernelError(f"a tree needs {longest + 1} costs, {grades} rates and a token to begin with")
        if q is None and any(tree.sampling for tree in wanted):
            raise KernelError("sampled trees need memory for their distributions")
        self._longest, self._wanted, self._kept = longest, wanted, (q, known, read)
        # In arrays of the standard library: for a short pass, numpy's time per call is noticeable.
        self._numbers, self._ids, self._drafted = array("d"), array("q"), array("q", bytes(8 * count * 3 * longest))
        for tree in wanted:
            self._numbers.extend(tree.passes)
            self._numbers.extend(tree.rates)
            self._ids.extend(tree.ids)
        self._numbers.extend(rules.edges)
        self._rows = self._c_rows(8 * (longest + 1 + grades), q)
        self.c = CGrowing(
            row_count=count,
            rows=self._rows,
            read_count=len(read),
            read=c_reads(read),
            known=known.data_ptr(),
            edges=self._numbers.buffer_info()[0] + 8 * count * (longest + 1 + grades),
            edge_count=grades - 1,
            longest=longest,
            branches=rules.branches,
            stream=rules.stream,
            least=rules.least,
            hope=rules.hope,
            threads=threads,
        )
        """Valid while this object lives."""

    def _c_rows(self, size: int, q: Tensor | None) -> Array[CGrowth]:
        """`sk_growth` of each row; `size` is the number of bytes of its costs and rates."""
        longest = self._longest
        number, first_id, drafted = (part.buffer_info()[0] for part in (self._numbers, self._ids, self._drafted))
        q_at, q_size = (0, 0) if q is None else (q.data_ptr(), 4 * longest * q.shape[2])
        firsts = accumulate((len(tree.ids) for tree in self._wanted), initial=0)
        return (CGrowth * len(self._wanted))(
            *(
                CGrowth(
                    tree.slot,
                    tree.begin,
                    tree.begin + len(tree.ids),
                    tree.depth,
                    tree.line,
                    tree.repeatable,
                    first_id + 8 * first,
                    number + i * size,
                    number + i * size + 8 * (longest + 1),
                    tree.step,
                    tree.sampling and c_settings(tree.sampling),
                    tree.seed,
                    tree.number,
                    q_at + i * q_size,
                    drafted + i * 24 * longest,
                )
                for i, (tree, first) in enumerate(zip(self._wanted, firsts, strict=False))
            )
        )

    @property
    def trees(self) -> list[GrownTree]:
        """The trees [B], after the call."""
        found, longest = self._drafted.tolist(), self._longest
        starts = range(0, len(found), longest)
        return [
            GrownTree(*(found[at : at + row.count] for at in starts[3 * i : 3 * i + 3]))
            for i, row in enumerate(self._rows)
        ]


def c_reads(read: Sequence[TargetStates]) -> Array[CRead]:
    """`sk_read` of each; valid while the hidden states live.

    Raises:
        KernelError: they are not contiguous float32.
    """
    for each in read:
        if each.tapped.dtype is not torch.float32 or not each.tapped.is_contiguous():
            raise KernelError("hidden states must be contiguous float32")
    return (CRead * len(read))(
        *(CRead(each.slot, each.first, each.tapped.shape[0], each.tapped.data_ptr()) for each in read)
    )
