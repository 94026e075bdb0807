"""Counter-based random numbers: they depend on seed, number and index alone, never on the batch.

Each uniform is a hash of (seed, stream, number, index), by SplitMix64 (Steele, Lea & Flood 2014, "Fast Splittable
Pseudorandom Number Generators", figure 16). There is no state: draft, acceptance and last-token draws come from
separate streams, and a round's draws are the same in every batch.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
_FACTORS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_DRAWS_PER_ROUND = 1 << 16
_COUNTERS = np.arange(1, _DRAWS_PER_ROUND, dtype=np.uint64) * np.uint64(_GOLDEN)
_MASK = (1 << 64) - 1


class Stream(IntEnum):
    """Purpose of a draw; each has its own stream. The numbers are round numbers; in `LAST` and `XTC` they are positions
    of the text, so that these draws do not depend on drafts."""

    DRAFT = 1
    ACCEPT = 2
    LAST = 3
    ORDER = 4
    XTC = 5


def fresh_seed() -> int:
    """Random seed for a request without one."""
    return secrets.randbits(63)


def uniforms(seeds: Sequence[int], numbers: Sequence[int], stream: Stream, count: int) -> NDArray[np.float64]:
    """Uniform draws [B, count] in [0, 1) with 53 random bits, float64, for one number of each row.

    Args:
        seeds: [B]; any integers.
        numbers: [B], of each row's round, say.
        stream: purpose of the draws.
        count: draws per row, below 65,536.
    """
    if count == 0:
        return np.empty((len(seeds), 0))
    origins = [
        (_key(seed & _MASK, stream) + number * _DRAWS_PER_ROUND * _GOLDEN) & _MASK
        for seed, number in zip(seeds, numbers, strict=True)
    ]
    bits = np.array(origins, dtype=np.uint64)[:, None] + _COUNTERS[:count]
    return (_mix_all(bits) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def token_uniforms(seeds: Sequence[int], starts: Sequence[int], count: int) -> NDArray[np.float64]:
    """Uniform draws [B, count] of the tokens at `count` positions of each row's text, from `starts` [B] on."""
    numbers = [start + i for start in starts for i in range(count)]
    return uniforms([seed for seed in seeds for _ in range(count)], numbers, Stream.LAST, 1).reshape(-1, count)


def uniform(seed: int, number: int, stream: Stream, index: int) -> float:
    """One draw of `uniforms`; in plain Python, as few of a round's draws are asked for one by one."""
    counter = number * _DRAWS_PER_ROUND + index + 1
    return float(_mix((_key(seed & _MASK, stream) + counter * _GOLDEN) & _MASK) >> 11) * 2.0**-53


@lru_cache(maxsize=256)
def _key(seed: int, stream: Stream) -> int:
    """Hash of a seed and a stream."""
    return _mix((_mix((seed + _GOLDEN) & _MASK) + stream * _GOLDEN) & _MASK)


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * _FACTORS[0]) & _MASK
    z = ((z ^ (z >> 27)) * _FACTORS[1]) & _MASK
    return z ^ (z >> 31)


def _mix_all(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_FACTORS[0])
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_FACTORS[1])
    return z ^ (z >> np.uint64(31))
