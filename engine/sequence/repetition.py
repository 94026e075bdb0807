"""Replies that repeat themselves: the same tokens several times in a row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LONGEST_PERIOD = 200
"""Most tokens of what is repeated."""
TIMES = 4
"""How often it must be there."""
LEAST = 64
"""Tokens of all its occurrences together: columns of a table, zeros and laughter are not repetitions."""


class Repetition:
    """Watches a growing reply for a period of up to `LONGEST_PERIOD` tokens that is there `TIMES` times in a row and
    for at least `LEAST` tokens.

    For each period it counts how many of the last tokens equal those one period before: one comparison of
    `LONGEST_PERIOD` tokens per new token, whatever the length of the reply.
    """

    def __init__(self) -> None:
        periods = np.arange(1, LONGEST_PERIOD + 1)
        self._needed = np.maximum(TIMES * periods, LEAST) - periods
        """Value of `_equal` at which a period is a repetition, by period."""
        self._recent: NDArray[np.int64] = np.full(LONGEST_PERIOD, -1)
        """The last tokens, the newest first; -1 before the reply."""
        self._equal = np.zeros(LONGEST_PERIOD, dtype=np.int64)
        """Number of last tokens that equal the tokens one period before, by period."""

    def add(self, token: int) -> bool:
        """Add a token; whether the reply repeats itself now."""
        self._equal = np.where(self._recent == token, self._equal + 1, 0)
        self._recent = np.concatenate([[token], self._recent[:-1]])
        return bool((self._equal >= self._needed).any())
