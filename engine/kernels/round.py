"""Rounds on the kernels: drafts that grow, a pass over all rows and their drafts, and verdicts; some in one call."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import _Pointer, addressof, c_float, c_int32, c_int64
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.kernels.sampling import c_settings
from specchat.engine.kernels.structures import CPenalties, CRound, CRow, CRows
from specchat.engine.request import Sampling

Logits = NDArray[np.float32]


class RoundRules(NamedTuple):
    """Settings for all rounds."""

    vocabulary: int
    """V"""
    branches: int
    """Maximum number of tokens for one position."""
    accept_stream: int
    """Random number stream of acceptance."""
    last_stream: int
    """Of last tokens."""


class RoundRow(NamedTuple):
    """A row and its draft: a tree over K tokens, node 0 being the row's last token."""

    slot: int
    start: int
    """Position of node 0."""
    last_token: int
    """Node 0."""
    sampling: Sampling | None
    """Settings of a row whose tokens are sampled, lossless; None accepts the likeliest tokens."""
    seed: int
    number: int
    """Round number, for the random numbers."""
    drafted: Sequence[int] = ()
    """[K]"""
    parents: Sequence[int] = ()
    """[K], the node before each."""
    q: int = 0
    """Address of q [nodes, V'], float32: distributions of each node's children; 0 if they were not drawn."""
    penalties: _Pointer[CPenalties] | None = None
    held: bool = False
    """Whether the caller judges it, not the kernels."""
    left: int = 0
    """Tokens that it may yet emit, in all rounds of the call."""


class RowVerdict(NamedTuple):
    """Result of verifying a row's draft."""

    path: list[int]
    """Accepted nodes."""
    last: int
    """Correction, bonus or plain token; -1 if a logit is NaN."""
    p: list[float]
    """Of a sampled row, p(x) of every tested token, in order."""
    q: list[float]
    """q(x) of the same tokens."""
    beta: list[float]
    """β of every tested position."""


class RoundRows:
    """B rows for the kernels, and memory for what they find; used again for each round.

    Args:
        count: B.
        most: tokens of a draft.
        rules: for all rounds.
        c: of the round, if its memory is part of others'.
    """

    def __init__(self, count: int, most: int, rules: RoundRules, c: CRound | None = None) -> None:
        self.most, self._vocabulary = most, rules.vocabulary
        self.rows = (CRow * count)()
        # In arrays of ctypes: for a short pass, numpy's time per call is noticeable.
        self._drafted = (c_int64 * (3 * most * count))()
        self._path = (c_int32 * (most * count))()
        self._chances = (c_float * (3 * most * count))()
        drafted, path, chances = (addressof(part) for part in (self._drafted, self._path, self._chances))
        for i, row in enumerate(self.rows):
            row.drafted, row.path = drafted + 24 * most * i, path + 4 * most * i
            row.p = chances + 12 * most * i
            row.q_of, row.beta = row.p + 4 * most, row.p + 8 * most
        self._support: tuple[Tensor, Tensor] | None = None
        self.c = CRound() if c is None else c
        self.c.rows = CRows(count=count, rows=self.rows, most=most, support=rules.vocabulary, **rules._asdict())

    def fill(
        self, wanted: Sequence[RoundRow], support: tuple[Tensor, Tensor] | None, best_count: int, threads: int
    ) -> None:
        """Set the rows of a round.

        Args:
            wanted: [B]; rows with q have the same draft vocabulary.
            support: draft vocabulary: its V' token ids, and the index of each of the V tokens in it; None if V' = V.
            best_count: likeliest tokens to find after each node; at least 1 if a row accepts the likeliest tokens.
            threads: number of threads, the caller included.
        """
        all_rows, most = self.c.rows, self.most
        if support is not self._support:
            all_rows.tokens, all_rows.places = [part.data_ptr() for part in support] if support else (None, None)
            all_rows.support, self._support = support[0].shape[0] if support else self._vocabulary, support
        all_rows.best_count, all_rows.threads = best_count, threads
        for i, (row, each) in enumerate(zip(self.rows, wanted, strict=True)):
            count, first = len(each.drafted), 3 * most * i
            row.slot, row.start, row.last_token, row.count = each.slot, each.start, each.last_token, count
            row.sampling = each.sampling and c_settings(each.sampling)
            row.seed, row.number, row.q, row.held, row.left = each.seed, each.number, each.q, each.held, each.left
            row.penalties = each.penalties
            self._drafted[first : first + count] = [*each.drafted]
            self._drafted[first + most : first + most + count] = [*each.parents]

    @property
    def nodes(self) -> list[int]:
        """K + 1 of each row."""
        return [row.count + 1 for row in self.rows]

    def draft(self, i: int) -> tuple[list[int], list[int], list[int]]:
        """Tokens, parents, and grades of a draft that has grown."""
        count, first = self.rows[i].count, 3 * self.most * i
        starts = range(first, first + 3 * self.most, self.most)
        tokens, parents, grades = (self._drafted[start : start + count] for start in starts)
        return tokens, parents, grades

    def logits(self, i: int) -> Logits:
        """Logits [K + 1, V] after each node, valid until the next round."""
        return _view(c_float, self.rows[i].logits, self.rows[i].count + 1, self._vocabulary)

    def tapped(self, width: int) -> NDArray[np.float32]:
        """Tapped hidden states [nodes of all rows, width], valid until the next round."""
        return _view(c_float, self.c.tapped, sum(self.nodes), width)

    def settle(self, i: int, path: Sequence[int]) -> None:
        """Set which nodes of a row were accepted, where something else has judged it."""
        first = self.most * i
        self.rows[i].accepted = len(path)
        self._path[first : first + len(path)] = [*path]

    def verdict(self, i: int) -> RowVerdict:
        """The result of a judged row."""
        row, path, first = self.rows[i], self.most * i, 3 * self.most * i
        ends = ((first, row.tested), (first + self.most, row.tested), (first + 2 * self.most, row.positions))
        p, q, beta = (self._chances[start : start + length] for start, length in ends)
        return RowVerdict(self._path[path : path + row.accepted], row.last, p, q, beta)


def round_memory(rules: RoundRules, rounds: int, count: int, most: int) -> list[RoundRows]:
    """Memory for as many rounds as a call may run, one after the other, with room for so many rows and tokens."""
    return [RoundRows(count, most, rules, each) for each in (CRound * rounds)()]


def _view(kind: type[Any], address: int, count: int, width: int) -> NDArray[Any]:
    """Array [count, width] of numbers at an address."""
    numbers: Any = (kind * (count * width)).from_address(address)
    return np.frombuffer(numbers, kind).reshape(count, width)
