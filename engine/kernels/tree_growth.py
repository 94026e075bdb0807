"""Draft trees that a head on packed weights grows, as they are asked for and as they come out."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import Array
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from specchat.engine.kernels.library import KernelError
from specchat.engine.kernels.sampling import c_settings
from specchat.engine.kernels.structures import CGrowing, CGrowth, CRead
from specchat.engine.request import Sampling


@dataclass(frozen=True, slots=True)
class GrowthRules:
    """What holds for all trees."""

    edges: Sequence[float]
    """Shares at which grades of confidence begin."""
    longest: int
    """Most tokens of a tree."""
    branches: int
    """Most tokens behind one node."""
    least: float
    """Least price of a token."""
    hope: float
    """Chance of the likeliest token behind one that was accepted."""
    stream: int
    """Of the random numbers."""


class TreeRequest(NamedTuple):
    """The tree of one row."""

    slot: int
    begin: int
    """The first place that the head has to read."""
    ids: Sequence[int]
    """The tokens of the places from there on, one at least."""
    depth: int
    """Positions that it may have."""
    line: int
    """Positions that are drafted for whatever they cost."""
    repeatable: bool
    """Whether it goes on regardless of other rows."""
    passes: Sequence[float]
    """[longest + 1], the price of verifying 0, 1, … tokens."""
    step: float
    """The price of a draft step."""
    rates: Sequence[float]
    """[grades], the chance that a token is accepted."""
    sampling: Sampling | None
    """Of a row whose tokens are drawn; None where they are the likeliest."""
    seed: int
    number: int
    """Of its round."""


class GrownTree(NamedTuple):
    """What has grown."""

    tokens: list[int]
    parents: list[int]
    """The node that each follows: 0 for the row's last token, i for the i-th drafted one."""
    grades: list[int]


class TargetStates(NamedTuple):
    """What the target has read of a slot."""

    slot: int
    first: int
    """Column of the first token."""
    tapped: Tensor
    """[n, taps x hidden], float32, the target's hidden states."""


class Growing:
    """Trees of all rows as the library takes them.

    Args:
        read: what the target has read since the last time.
        wanted: [B].
        q: [B, longest, V'], float32, contiguous, gets by node what the tokens behind it were drawn from; None where no
            row draws.
        known: [V'], int64, contiguous, the tokens that can be drafted.
        rules: for all trees.
        threads: how many compute, the caller included.

    Raises:
        KernelError: something does not fit.
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
            raise KernelError(f"a tree needs {longest + 1} prices, {grades} rates and a place to begin at")
        if q is None and any(tree.sampling for tree in wanted):
            raise KernelError("tokens that are drawn need room for what they are drawn from")
        # In arrays of the standard library: beside a short pass each call into numpy is felt.
        numbers, ids, firsts = array("d"), array("q"), list[int]()
        for tree in wanted:
            numbers.extend(tree.passes)
            numbers.extend(tree.rates)
            firsts.append(len(ids))
            ids.extend(tree.ids)
        numbers.extend(rules.edges)
        self._longest = longest
        self._drafted = array("q", bytes(8 * count * 3 * longest))
        self._kept = (numbers, ids, q, known, read)
        first_id, number, drafted = (part.buffer_info()[0] for part in (ids, numbers, self._drafted))
        size = 8 * (longest + 1 + grades)
        q_at, q_size = (0, 0) if q is None else (q.data_ptr(), 4 * longest * q.shape[2])
        self._rows = (CGrowth * count)(
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
                for i, (tree, first) in enumerate(zip(wanted, firsts, strict=True))
            )
        )
        self.c = CGrowing(
            row_count=count,
            rows=self._rows,
            read_count=len(read),
            read=c_reads(read),
            known=known.data_ptr(),
            edges=number + count * size,
            edge_count=grades - 1,
            longest=longest,
            branches=rules.branches,
            stream=rules.stream,
            least=rules.least,
            hope=rules.hope,
            threads=threads,
        )
        """Valid while this object lives."""

    @property
    def trees(self) -> list[GrownTree]:
        """What the library has written."""
        found, longest = self._drafted.tolist(), self._longest
        starts = range(0, len(found), longest)
        return [
            GrownTree(*(found[at : at + row.count] for at in starts[3 * i : 3 * i + 3]))
            for i, row in enumerate(self._rows)
        ]


def c_reads(read: Sequence[TargetStates]) -> Array[CRead]:
    """What the target has read as the library takes it; valid while the hidden states live.

    Raises:
        KernelError: they are of another kind.
    """
    for each in read:
        if each.tapped.dtype is not torch.float32 or not each.tapped.is_contiguous():
            raise KernelError("hidden states must be contiguous float32")
    return (CRead * len(read))(
        *(CRead(each.slot, each.first, each.tapped.shape[0], each.tapped.data_ptr()) for each in read)
    )
