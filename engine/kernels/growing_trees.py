"""Draft trees for the kernels to grow: by themselves, or at the beginning of a round."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import Array, addressof, c_int64
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from specchat.engine.kernels.library import KernelError, library
from specchat.engine.kernels.structures import CGrowing, CGrowth, CRead


class Mark(IntEnum):
    """`sk_mark` of a token."""

    ENDS = 1
    """Drafts from texts end with it."""
    NEVER_DRAFTED = 2
    """They never have it."""


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
    buckets: list[int]


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
        head: `sk_head`; None for drafts from texts alone.
        count: B.
        support: draft vocabulary, int64, contiguous: its V' token ids, and the index of each of the V tokens in it;
            None without a head.
        rules: for all trees.
        vocabulary: V.
    """

    def __init__(
        self, head: int | None, count: int, support: tuple[Tensor, Tensor] | None, rules: GrowthRules, vocabulary: int
    ) -> None:
        self.head, self.longest = head, rules.longest
        self.rows = (CGrowth * count)()
        """[B], the tree to grow for each."""
        known, places = (part.data_ptr() for part in support) if support else (None, None)
        edges = array("d", rules.edges)
        self._lasting = support, edges
        self._kept: object = None
        self._c = CGrowing(
            row_count=count,
            rows=self.rows,
            known=known,
            places=places,
            vocabulary=vocabulary,
            edge_count=len(edges),
            **rules._asdict() | {"edges": edges.buffer_info()[0]},
        )

    def fill(
        self,
        kept: object,
        threads: int,
        read: Sequence[TargetStates] = (),
        width: int = 0,
        texts: tuple[array[int], int] | None = None,
    ) -> None:
        """Set what is new for a draft, next to `rows`.

        Args:
            kept: memory that `rows` point to.
            threads: number of threads, the caller included.
            read: new hidden states of the target.
            width: of them.
            texts: `Mark` of each of the V tokens, and the bucket of the first grade of tokens from texts; None without.
        """
        self._kept = kept, read, texts
        if texts:
            self._c.marks, self._c.text_grade = texts[0].buffer_info()[0], texts[1]
        self._c.read_count, self._c.threads = len(read), threads
        if read:
            self._c.read = c_reads(read, width)

    @property
    def steps(self) -> int:
        """Number of draft steps, once they have grown without a pass."""
        return int(self._c.steps)

    def grow(self) -> list[GrownTree]:
        """Grow them without a pass of the target, in one call.

        Raises:
            KernelError: a slot or column does not exist.
        """
        size = 3 * self.longest
        drafted = (c_int64 * (size * len(self.rows)))()
        places = [addressof(drafted) + 8 * size * i for i in range(len(self.rows))]
        library().c.sk_head_grow(self.head, self.c_for(places))
        found = []
        for i, row in enumerate(self.rows):
            starts = range(size * i, size * (i + 1), self.longest)
            found.append(GrownTree(*(drafted[start : start + row.count] for start in starts)))
        return found

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
