"""Draft trees for the kernels to grow: by themselves, or at the beginning of a round."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import Array
from typing import NamedTuple

import torch
from torch import Tensor

from specchat.engine.kernels.library import KernelError
from specchat.engine.kernels.structures import CGrowing, CGrowth, CRead


class GrowthRules(NamedTuple):
    """Settings for all trees of a call."""

    edges: tuple[float, ...]
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
    """[n or more, taps x hidden], float32, contiguous."""
    tokens: int
    """n"""


class GrowingTrees:
    """`sk_growing` for B trees, and what has to live as long; used again for each draft.

    Args:
        head: `sk_head`.
        count: B.
        support: draft vocabulary, int64, contiguous: its V' token ids, and the index of each of the V tokens in it.
        rules: for all trees.
    """

    def __init__(self, head: int, count: int, support: tuple[Tensor, Tensor], rules: GrowthRules) -> None:
        self.head, self.longest = head, rules.longest
        self.rows = (CGrowth * count)()
        """[B], the tree to grow for each."""
        known, places = support
        edges = array("d", rules.edges)
        self._lasting = support, edges
        self._kept: object = None
        self._c = CGrowing(
            row_count=count,
            rows=self.rows,
            known=known.data_ptr(),
            places=places.data_ptr(),
            vocabulary=places.shape[0],
            edge_count=len(edges),
            **rules._asdict() | {"edges": edges.buffer_info()[0]},
        )

    def fill(self, read: Sequence[TargetStates], width: int, threads: int, kept: object) -> None:
        """Set what is new for a draft, next to `rows`.

        Args:
            read: new hidden states of the target.
            width: of them.
            threads: number of threads, the caller included.
            kept: memory that `rows` point to.
        """
        self._kept = kept, read
        self._c.read_count, self._c.threads = len(read), threads
        if read:
            self._c.read = c_reads(read, width)

    @property
    def steps(self) -> int:
        """Number of draft steps, once they have grown without a pass."""
        return int(self._c.steps)

    def c_for(self, drafted: Sequence[int]) -> CGrowing:
        """`sk_growing` with the addresses of memory [3, longest], int64, for each row's tokens, parents and grades."""
        for row, place in zip(self.rows, drafted, strict=True):
            row.drafted = place
        return self._c


def c_reads(read: Sequence[TargetStates], width: int) -> Array[CRead]:
    """`sk_read` of each; valid while the hidden states live.

    Raises:
        KernelError: they are not contiguous float32 of this width.
    """
    for each in read:
        if each.tapped.dtype is not torch.float32 or each.tapped.stride() != (width, 1):
            raise KernelError(f"hidden states must be contiguous float32 and {width} wide")
    return (CRead * len(read))(*(CRead(each.slot, each.first, each.tokens, each.tapped.data_ptr()) for each in read))
