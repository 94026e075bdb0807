"""Datastore: texts of earlier chats that drafts are taken from.

As in REST (He et al. 2023, arXiv 2311.08252, section 3.1) the continuations of the longest suffix that occurs in them,
by a suffix array; as in SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975) they are the user's own, and the length
and the number of matches say how sure a token is. Where matches disagree nothing is drafted: their majority is right
less often than a draft head.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from specchat.engine.drafters.suffix_array import DEPTH, SuffixArray

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
_FEW = 32_768
"""Tokens up to which new texts are kept apart from the others: those are sorted anew in a few milliseconds."""

Texts = dict[int, Sequence[int]]
"""Token ids by key."""


class _Part(NamedTuple):
    """Texts that are searched together."""

    keys: tuple[int, ...]
    """Of the texts, in their order."""
    array: SuffixArray


class Datastore:
    """Texts by key; keys grow with time. One thread at a time may change them; others may draft at the same time."""

    wanted = WANTED_TOKENS
    """How many tokens to fill it with: the newest ones."""
    context = DEPTH
    """Tokens that a match can have."""

    def __init__(self) -> None:
        self._parts: tuple[_Part, ...] = ()
        """At most two: most of the texts, and the newest ones."""

    def __bool__(self) -> bool:
        """Whether there is any text."""
        return bool(self._parts)

    @property
    def keys(self) -> frozenset[int]:
        """Of all texts."""
        return frozenset(key for part in self._parts for key in part.keys)

    def update(self, new: Mapping[int, Sequence[int]], gone: Collection[int] = frozenset()) -> None:
        """Add texts, token ids by key, and forget texts that are gone or have the key of a new one.

        Nothing is drafted any more from what is gone as soon as this has begun.
        """
        before, gone = self._parts, {*gone, *new}
        self._parts = tuple(part for part in before if not any(key in gone for key in part.keys))
        if len(self._parts) == len(before) and not new:
            return
        settled = before[:1] if self._parts[:1] == before[:1] else ()
        recent = {**_texts(before[1:], gone), **new}
        if settled and _size(recent) <= min(_FEW, MOST_TOKENS - len(settled[0].array)):
            self._parts = (*settled, *_sorted(recent))
        else:
            self._parts = _sorted(_newest({**_texts(before[:1], gone), **recent}))

    def continuation(self, text: Sequence[int], count: int, shared: int = 0) -> list[tuple[int, int]]:
        """Up to `count` tokens that may follow a text, each with its grade; none where nothing is sure.

        Args:
            text: token ids.
            count: how many are wanted.
            shared: only from matches of more tokens than these.
        """
        found = [(part.array, part.array.longest_match(text)) for part in self._parts]
        length = max((match.length for _, match in found), default=0)
        if length < max(LEAST, shared + 1):
            return []
        votes: list[tuple[int, ...]] = []
        for array, match in reversed(found):
            if match.length == length:
                wanted = _VOTES - len(votes)
                votes += [array.following(place, count) for place in array.latest(match.places, wanted)]
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
    """Of a token after matches of this length, which all have it; -1 where that says too little."""
    return sum(length >= least for least in (_ALONE if matches == 1 else _AGREED)) - 1


def _sorted(texts: Texts) -> tuple[_Part, ...]:
    """These as one part, oldest first; empty without texts."""
    keys = tuple(sorted(texts))
    return (_Part(keys, SuffixArray([texts[key] for key in keys])),) if keys else ()


def _texts(parts: Sequence[_Part], gone: Collection[int]) -> Texts:
    """Those of some parts without what is gone."""
    pairs = (pair for part in parts for pair in zip(part.keys, part.array.sequences(), strict=True))
    return {key: tokens for key, tokens in pairs if key not in gone}


def _newest(texts: Texts) -> Texts:
    """All of these, or where they are too many the newest ones."""
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
