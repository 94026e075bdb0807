"""Suffix array of token sequences read backwards: the longest suffix of a text that occurs in them, and where.

Manber & Myers 1993, "Suffix arrays: a new method for on-line string searches": suffixes in sorted order, so that all
places of a pattern are neighbours, found by bisection. What is sorted here is each place's context, the tokens before
it from the last one on: the neighbours of a text's own context share its longest suffixes.

Contexts are compared over `DEPTH` tokens. 8 bytes a token; five times as much while it is made.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

DEPTH = 32
"""Tokens of a context that are compared."""
_BORDER = 0xFFFFFFFF
"""Stands around each sequence: no token, so that no match crosses it."""
_BYTES = 4
"""Of a token: big-endian, so that bytes sort as tokens do."""


class Matched(NamedTuple):
    """The longest suffix of a text that occurs in the sequences."""

    length: int
    """Tokens, `DEPTH` at most; 0 if none."""
    places: range
    """Where in the sorted order its occurrences are."""


NOTHING = Matched(0, range(0))


class SuffixArray:
    """All contexts of some sequences.

    Args:
        sequences: of token ids, oldest first.
    """

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        border = np.array([_BORDER], dtype=np.uint32)
        parts = [border]
        for sequence in sequences:
            parts += [np.asarray(sequence, dtype=np.uint32), border]
        backwards = np.concatenate(parts)[::-1]
        self._text = backwards.astype(">u4").tobytes()
        self._order = memoryview(_sorted(backwards).astype(np.int32).tobytes()).cast("i")

    def __len__(self) -> int:
        """Tokens, and the borders between sequences."""
        return len(self._order)

    def sequences(self) -> list[memoryview[int]]:
        """What it was made of, oldest first."""
        text = np.frombuffer(self._text, dtype=">u4").astype(np.uint32)[::-1]
        borders = np.flatnonzero(text == _BORDER).tolist()
        tokens = memoryview(text.tobytes()).cast("I")
        return [tokens[begin + 1 : end] for begin, end in pairwise(borders)]

    def longest_match(self, text: Sequence[int]) -> Matched:
        """The longest suffix of a text."""
        recent = text[: -DEPTH - 1 : -1]
        wanted = struct.pack(f">{len(recent)}I", *recent)
        place = bisect_left(self._order, wanted, key=self._context)
        length = 0
        if place:
            length = self._common(wanted, self._order[place - 1])
        if place < len(self._order):
            length = max(length, self._common(wanted, self._order[place]))
        if not length:
            return NOTHING
        size = length * _BYTES
        wanted, whole = wanted[:size], self._text

        def context(start: int) -> bytes:
            begin = start * _BYTES
            return whole[begin : begin + size]

        first = bisect_left(self._order, wanted, hi=place, key=context)
        return Matched(length, range(first, bisect_right(self._order, wanted, lo=place, key=context)))

    def latest(self, places: range, count: int) -> list[int]:
        """Occurrences at these places, the latest first, `count` at most; of very many, of some of them."""
        found = self._order[places.start : min(places.stop, places.start + _LOOKED_AT)].tolist()
        return sorted(found)[:count]

    def following(self, occurrence: int, count: int) -> tuple[int, ...]:
        """Up to `count` tokens after an occurrence, to the end of its sequence at most."""
        begin = max(occurrence - count, 0)
        tokens = struct.unpack_from(f">{occurrence - begin}I", self._text, begin * _BYTES)[::-1]
        return tokens[: tokens.index(_BORDER)] if _BORDER in tokens else tokens

    def _context(self, start: int) -> bytes:
        begin = start * _BYTES
        return self._text[begin : begin + DEPTH * _BYTES]

    def _common(self, wanted: bytes, start: int) -> int:
        """How many tokens a context begins with that are wanted."""
        found = self._context(start)
        most = min(len(wanted), len(found))
        differing = int.from_bytes(wanted[:most], "big") ^ int.from_bytes(found[:most], "big")
        return (most * 8 - differing.bit_length()) // (8 * _BYTES)


_LOOKED_AT = 1024
"""Occurrences that the latest ones are sought among."""


def _sorted(text: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Where the suffixes of a text begin, in the order of their first `DEPTH` tokens.

    By prefix doubling: known ranks of suffixes by their first n tokens, those by 2n are the order of pairs of ranks.
    """
    ranks, width = text.astype(np.uint64), 1
    while True:
        pairs = ranks << np.uint64(32)
        pairs[:-width] |= ranks[width:]
        order = np.argsort(pairs)
        width *= 2
        if width >= DEPTH or len(text) <= width:
            return order
        pairs = pairs[order]
        ranks[order] = np.concatenate([[0], np.cumsum(pairs[1:] != pairs[:-1])]).astype(np.uint64)
