"""Datastore: texts of earlier chats that drafts are taken from.

As in REST (He et al. 2023, arXiv 2311.08252, section 3.1) the continuations of the longest suffix that occurs in them,
by a suffix array; as in SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975) they are the user's own, and the length
and the number of matches say how sure a token is. Where matches disagree nothing is drafted: their majority is right
less often than a draft head.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_TOKENS = 1 << 20
"""Tokens of all texts together, at 8 bytes each, and one more for each text."""
WANTED_TOKENS = MOST_TOKENS * 7 // 8
"""Tokens that remain after the oldest texts were dropped."""
GRADES = 3
"""Grades of sureness, 0 to 2."""
_ALONE, _AGREED = (12, 17, 25), (6, 9, 13)
"""Length from which on a match has each grade: by itself, and where all of several continue in the same way. Of shorter
ones the draft head knows better, in chats about something else."""
LEAST = min(*_ALONE, *_AGREED)
"""Tokens of the shortest match."""
_VOTES = 16
"""Matches that are asked, the latest ones."""
FEW = 32_768
"""Tokens up to which new texts are a separate part, which is sorted again in a few milliseconds."""

Texts = dict[int, Sequence[int]]
"""Token ids by key."""
DEPTH = 32
"""Tokens of a context that are compared."""
_BORDER = 0xFFFFFFFF
"""Stands around each sequence: no token, so that no match crosses it."""
_BYTES = 4
"""Bytes of a token: big-endian, so that bytes sort as tokens do."""
_LOOKED_AT = 1024
"""Occurrences that the latest ones are sought among."""


class _Part(NamedTuple):
    """Texts that are searched together."""

    keys: tuple[int, ...]
    """Keys of the texts, in their order."""
    array: SuffixArray


class Datastore:
    """Texts by key; keys grow with time. One thread at a time may change them; others may draft at the same time."""

    wanted = WANTED_TOKENS
    """Number of tokens to fill it with: the newest ones."""
    context = DEPTH
    """Tokens that a match can have."""

    def __init__(self) -> None:
        self._parts: tuple[_Part, ...] = ()
        """Most of the texts, and the newest ones: two parts at most."""

    def __bool__(self) -> bool:
        """Whether there is any text."""
        return bool(self._parts)

    @property
    def keys(self) -> frozenset[int]:
        """Keys of all texts."""
        return frozenset(key for part in self._parts for key in part.keys)

    def update(self, new: Mapping[int, Sequence[int]], gone: Collection[int] = frozenset()) -> None:
        """Add texts, token ids by key, and forget texts that are gone or have the key of a new one.

        Nothing is drafted any more from what is gone as soon as this has begun.
        """
        before, gone = self._parts, {*gone, *new}
        self._parts = tuple(part for part in before if not any(key in gone for key in part.keys))
        if len(self._parts) == len(before) and not new:
            return
        older = before[:1] if self._parts[:1] == before[:1] else ()
        recent = {**_texts(before[1:], gone), **new}
        if older and _size(recent) <= min(FEW, MOST_TOKENS - len(older[0].array)):
            self._parts = (*older, *_sorted(recent))
        else:
            self._parts = _sorted(_newest({**_texts(before[:1], gone), **recent}))

    def continuation(
        self, text: Sequence[int], count: int, shared: int = 0, without: Collection[int] = ()
    ) -> list[tuple[int, int]]:
        """Up to `count` tokens that may follow a text, each with its grade; none where nothing is sure.

        Args:
            text: token ids.
            count: how many are wanted.
            shared: matches of this number of tokens or fewer are ignored.
            without: keys of texts that are not searched.
        """
        parts = self._parts  # another thread may replace them
        usable = [_usable(part, without) for part in parts]
        found = [(part.array, part.array.longest_match(text, use)) for part, use in zip(parts, usable, strict=True)]
        length = max((match.length for _, match in found), default=0)
        if length < max(LEAST, shared + 1):
            return []
        votes: list[tuple[int, ...]] = []
        for (array, match), use in zip(reversed(found), reversed(usable), strict=True):
            if match.length == length:
                wanted = _VOTES - len(votes)
                votes += [array.following(place, count) for place in array.latest(match.places, wanted, use)]
        drafted: list[tuple[int, int]] = []
        for place in range(count):
            votes = [each for each in votes if len(each) > place]
            tokens = {each[place] for each in votes}
            grade = _grade(length + place, len(votes))
            if len(tokens) != 1 or grade < 0:
                break
            drafted.append((tokens.pop(), grade))
        return drafted


def _grade(length: int, matches: int) -> int:
    """Grade of a token after matches of this length, which all have it; -1 if they say too little."""
    return sum(length >= least for least in (_ALONE if matches == 1 else _AGREED)) - 1


def _usable(part: _Part, without: Collection[int]) -> Usable:
    """Whether an occurrence is not in a text of these keys; None if that holds for all."""
    excluded = {number for number, key in enumerate(part.keys) if key in without} if without else ()
    return (lambda occurrence: part.array.sequence_of(occurrence) not in excluded) if excluded else None


def _sorted(texts: Texts) -> tuple[_Part, ...]:
    """These as one part, oldest first; empty without texts."""
    keys = tuple(sorted(texts))
    return (_Part(keys, SuffixArray([texts[key] for key in keys])),) if keys else ()


def _texts(parts: Sequence[_Part], gone: Collection[int]) -> Texts:
    """The texts of some parts, without those whose keys are `gone`."""
    pairs = (pair for part in parts for pair in zip(part.keys, part.array.sequences(), strict=True))
    return {key: tokens for key, tokens in pairs if key not in gone}


def _newest(texts: Texts) -> Texts:
    """The texts, or the newest ones if there are too many."""
    size = _size(texts)
    if size <= MOST_TOKENS:
        return texts
    left = dict(texts)
    for key in sorted(texts):
        if size <= WANTED_TOKENS:
            break
        size -= len(left.pop(key)) + 1
    return left


def _size(texts: Texts) -> int:
    """Tokens, and one between any two texts."""
    return 1 + sum(len(tokens) + 1 for tokens in texts.values())


class Matched(NamedTuple):
    """The longest suffix of a text that occurs in the sequences."""

    length: int
    """Tokens, `DEPTH` at most; 0 if none."""
    places: range
    """Its occurrences, as a range of the sorted order."""


NOTHING = Matched(0, range(0))
Usable = Callable[[int], bool] | None
"""Whether an occurrence counts; None if all do."""


class SuffixArray:
    """Token sequences read backwards: the longest suffix of a text that occurs in them, and where.

    Manber & Myers 1993, "Suffix arrays: a new method for on-line string searches": suffixes in sorted order, so that
    all places of a pattern are neighbours, found by bisection. What is sorted here is each place's context, the tokens
    before it from the last one on: the neighbours of a text's own context share its longest suffixes. Contexts are
    compared over `DEPTH` tokens. 8 bytes a token; five times as much while it is made.

    Args:
        sequences: of token ids, oldest first.
    """

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        border = np.array([_BORDER], dtype=np.uint32)
        parts = [border]
        for sequence in sequences:
            parts += [np.asarray(sequence, dtype=np.uint32), border]
        backwards = np.concatenate(parts)[::-1]
        self._borders = np.flatnonzero(backwards[::-1] == _BORDER)
        self._text = backwards.astype(">u4").tobytes()
        self._order = memoryview(_order_of(backwards).astype(np.int32).tobytes()).cast("i")

    def __len__(self) -> int:
        """Tokens, and the borders between sequences."""
        return len(self._order)

    def sequences(self) -> list[memoryview[int]]:
        """The sequences that it was made from, oldest first."""
        text = np.frombuffer(self._text, dtype=">u4").astype(np.uint32)[::-1]
        tokens = memoryview(text.tobytes()).cast("I")
        return [tokens[begin + 1 : end] for begin, end in pairwise(self._borders.tolist())]

    def sequence_of(self, occurrence: int) -> int:
        """The number of the sequence that the token before an occurrence is in; -1 at the beginning."""
        return int(np.searchsorted(self._borders, len(self) - 1 - occurrence)) - 1

    def longest_match(self, text: Sequence[int], usable: Usable = None) -> Matched:
        """The longest suffix of a text, among the occurrences that count."""
        recent = text[: -DEPTH - 1 : -1]
        wanted = struct.pack(f">{len(recent)}I", *recent)
        place = bisect_left(self._order, wanted, key=self._context)
        length = 0
        for places in (range(place - 1, -1, -1), range(place, len(self._order))):
            neighbours = (self._order[i] for i in places)
            if (neighbour := next(filter(usable, neighbours) if usable else neighbours, None)) is not None:
                length = max(length, self._common(wanted, neighbour))
        if not length:
            return NOTHING
        wanted, context = wanted[: length * _BYTES], partial(self._context, tokens=length)
        first = bisect_left(self._order, wanted, hi=place, key=context)
        return Matched(length, range(first, bisect_right(self._order, wanted, lo=place, key=context)))

    def latest(self, places: range, count: int, usable: Usable = None) -> list[int]:
        """Occurrences at these places that count, the latest first, `count` at most; of very many, of some of them."""
        found = self._order[places.start : min(places.stop, places.start + _LOOKED_AT)].tolist()
        return sorted(filter(usable, found) if usable else found)[:count]

    def following(self, occurrence: int, count: int) -> tuple[int, ...]:
        """Up to `count` tokens after an occurrence, to the end of its sequence at most."""
        begin = max(occurrence - count, 0)
        tokens = struct.unpack_from(f">{occurrence - begin}I", self._text, begin * _BYTES)[::-1]
        return tokens[: tokens.index(_BORDER)] if _BORDER in tokens else tokens

    def _context(self, start: int, tokens: int = DEPTH) -> bytes:
        begin = start * _BYTES
        return self._text[begin : begin + tokens * _BYTES]

    def _common(self, wanted: bytes, start: int) -> int:
        """Length of the common prefix of `wanted` and the context at `start`, in tokens."""
        found = self._context(start)
        most = min(len(wanted), len(found))
        differing = int.from_bytes(wanted[:most], "big") ^ int.from_bytes(found[:most], "big")
        return (most * 8 - differing.bit_length()) // (8 * _BYTES)


def _order_of(text: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Start positions of the suffixes of a text, sorted by their first `DEPTH` tokens.

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
