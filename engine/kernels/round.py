"""Memory of rounds on the kernels: rows with their drafts and results, texts, and hidden states that a head reads."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from ctypes import Array, addressof, c_float, c_int32, c_int64
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.kernels.library import CRead, CRound, CRow, CRows, KernelError, library

Logits = NDArray[np.float32]
_ROOM = 1024
"""Room for tokens after a text when its memory grows; it grows when less than half of it is left. The rounds of a call
add fewer."""


class RoundRules(NamedTuple):
    """Settings for all rounds."""

    vocabulary: int
    """V"""
    branches: int
    """Maximum number of tokens for one position."""
    accept_stream: int
    """Random number stream of acceptance."""
    last_stream: int
    """Random number stream of last tokens."""


class JudgedRow(NamedTuple):
    """Result of verifying a row's draft."""

    path: list[int]
    """Accepted nodes."""
    last: int
    """Correction, bonus or plain token; -1 if a logit is NaN."""
    p: list[float]
    """p(x) of every tested token of a sampled row, in order."""
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
        self._q: list[Tensor | None] = []
        """Distributions, kept alive here."""
        self.c = CRound() if c is None else c
        self.c.rows = CRows(count=count, rows=self.rows, most=most, support=rules.vocabulary, **rules._asdict())

    def fill(self, support: tuple[Tensor, Tensor] | None, best_count: int, threads: int) -> None:
        """Begin a round.

        Args:
            support: draft vocabulary of all q: its V' token ids, and the index of each of the V tokens in it; None if
                V' = V.
            best_count: likeliest tokens to find after each node; at least 1 if a row accepts the likeliest tokens.
            threads: number of threads, the caller included.
        """
        rows = self.c.rows
        if support is not self._support:
            rows.tokens, rows.places = [part.data_ptr() for part in support] if support else (None, None)
            rows.support, self._support = support[0].shape[0] if support else self._vocabulary, support
        rows.best_count, rows.threads = best_count, threads
        self._q.clear()

    def set_row(self, i: int, drafted: Sequence[int], parents: Sequence[int], q: Tensor | None, **fields: Any) -> None:
        """Set a row and its draft: a tree over K tokens, node 0 being the row's last token.

        Args:
            i: index of the row.
            drafted: [K]
            parents: [K], the node before each.
            q: [nodes, V'], float32: distributions of each node's children; None if they were not drawn.
            fields: others of `sk_row`.
        """
        row, count, first = self.rows[i], len(drafted), 3 * self.most * i
        q = None if q is None else q.contiguous()
        for name, value in fields.items():
            setattr(row, name, value)
        row.count, row.q = count, None if q is None else q.data_ptr()
        self._q.append(q)
        self._drafted[first : first + count] = [*drafted]
        self._drafted[first + self.most : first + self.most + count] = [*parents]

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

    def set_accepted(self, i: int, path: Sequence[int]) -> None:
        """Set which nodes of a row were accepted, where the caller has judged it."""
        first = self.most * i
        self.rows[i].accepted = len(path)
        self._path[first : first + len(path)] = [*path]

    def judge(self, masks: Mapping[int, NDArray[np.int32]]) -> None:
        """Judge rows that were held until their masks were known, [K + 1, ⌈V / 32⌉] by row.

        Raises:
            KernelError: the draft of a row is not valid.
        """
        held = [row.held for row in self.rows]
        for i, row in enumerate(self.rows):
            row.held, row.allowed = i not in masks, masks[i].ctypes.data if i in masks else None
        library().c.sk_judge(self.c.rows)
        for i, row in enumerate(self.rows):
            row.held = held[i] and i not in masks

    def judged(self, i: int) -> JudgedRow:
        """The result of a judged row."""
        row, path, first = self.rows[i], self.most * i, 3 * self.most * i
        ends = ((first, row.tested), (first + self.most, row.tested), (first + 2 * self.most, row.positions))
        p, q, beta = (self._chances[start : start + length] for start, length in ends)
        return JudgedRow(self._path[path : path + row.accepted], row.last, p, q, beta)


def round_memory(rules: RoundRules, rounds: int, count: int, most: int) -> list[RoundRows]:
    """Memory for `rounds` rounds of one call, each with room for `count` rows and `most` drafted tokens per row."""
    return [RoundRows(count, most, rules, each) for each in (CRound * rounds)()]


def _view(kind: type[Any], address: int, count: int, width: int) -> NDArray[Any]:
    """Array [count, width] of numbers at an address."""
    numbers: Any = (kind * (count * width)).from_address(address)
    return np.frombuffer(numbers, kind).reshape(count, width)


class TokenMark(IntEnum):
    """`sk_mark` of a token."""

    ENDS = 1
    """Drafts from texts end with it."""
    NEVER_DRAFTED = 2
    """Drafts from texts never have it."""


class TextMemory:
    """Token ids of a text, int64, with room for what the rounds of a call add."""

    def __init__(self) -> None:
        self.ids = array("q")
        """Longer than the text."""
        self.count = 0
        """Tokens of the text."""

    @property
    def address(self) -> int:
        """Address of the first token, until the text has grown."""
        return self.ids.buffer_info()[0]

    def append(self, tokens: Sequence[int]) -> None:
        """Add tokens to the text."""
        count = self.count + len(tokens)
        if len(self.ids) < count + _ROOM // 2:
            self.ids.extend([0] * (count + _ROOM - len(self.ids)))
        self.ids[self.count : count] = array("q", tokens)
        self.count = count


class TargetStates(NamedTuple):
    """Hidden states of the target for some tokens of a slot."""

    slot: int
    first: int
    """Column of the first token."""
    tapped: Tensor
    """[n or more, taps x hidden], float32, contiguous."""
    tokens: int
    """n"""


def c_reads(read: Sequence[TargetStates], width: int) -> Array[CRead]:
    """`sk_read` of each; valid while the hidden states live.

    Raises:
        KernelError: they are not contiguous float32 of this width.
    """
    for each in read:
        if each.tapped.dtype is not torch.float32 or each.tapped.stride() != (width, 1):
            raise KernelError(f"hidden states must be contiguous float32 and {width} wide")
    return (CRead * len(read))(*(CRead(each.slot, each.first, each.tokens, each.tapped.data_ptr()) for each in read))
