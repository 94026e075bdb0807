"""Counts of tokens and of pairs of tokens in a text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MOST = 32
"""Continuations of a token that are kept, the most frequent ones."""


@dataclass(frozen=True)
class Counts:
    """What a text has, of a vocabulary of V tokens."""

    single: Tensor
    """[V], int64: how often each token stands in it."""
    starts: Tensor
    """[V + 1], int64: the continuations of token t are entries starts[t] to starts[t + 1]."""
    following: Tensor
    """[N], int32: continuations, of each token the most frequent first."""
    times: Tensor
    """[N], int32: how often each of them stands there."""

    @property
    def tokens(self) -> int:
        """Tokens of the text."""
        return int(self.single.sum())

    @cached_property
    def most_frequent(self) -> Tensor:
        """Up to `MOST` tokens, the most frequent first, [W], int64: what stands behind a token that was never seen."""
        order = self.single.argsort(descending=True, stable=True)[:MOST]
        return order[self.single[order] > 0]

    def check(self) -> None:
        """Check that these are counts.

        Raises:
            ValueError: they are not.
        """
        size = len(self.following)
        whole = all(each.ndim == 1 and not each.is_floating_point() for each in vars(self).values())
        if not whole or len(self.starts) != len(self.single) + 1 or len(self.times) != size:
            raise ValueError("the lengths of its tables do not fit together")
        if int(self.starts[0]) or int(self.starts[-1]) != size or bool((self.starts.diff() < 0).any()):
            raise ValueError("its list of places is not in order")
        if int(self.starts.diff().max()) > MOST:
            raise ValueError(f"it has more than {MOST} continuations of a token")
        if size and not 0 <= int(self.following.min()) <= int(self.following.max()) < len(self.single):
            raise ValueError("it names tokens that are not in its vocabulary")
        if (size and int(self.times.min()) < 1) or int(self.single.min()) < 0 or not self.tokens:
            raise ValueError("it has counts that are none")


class TokenCounter:
    """Counts tokens as they come.

    Args:
        vocabulary: V.
    """

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._single = np.zeros(vocabulary, dtype=np.int64)
        self._pairs = np.empty(0, dtype=np.int64)
        self._times = np.empty(0, dtype=np.int64)

    def add(self, tokens: NDArray[np.int64]) -> None:
        """Count a piece of text [T]; no token of it stands behind one of another piece."""
        self._single += np.bincount(tokens, minlength=self._vocabulary)
        pairs = np.concatenate([self._pairs, tokens[:-1] * self._vocabulary + tokens[1:]])
        times = np.concatenate([self._times, np.ones(max(len(tokens) - 1, 0), dtype=np.int64)])
        self._pairs, places = np.unique(pairs, return_inverse=True)
        self._times = np.bincount(places, weights=times).astype(np.int64)

    def counts(self) -> Counts:
        """What has been counted; of each token's continuations the `MOST` most frequent, of equals the first by id."""
        before, behind = np.divmod(self._pairs, self._vocabulary)
        order = np.lexsort((behind, -self._times, before))
        before, behind, times = before[order], behind[order], self._times[order]
        rank = np.arange(len(before)) - np.searchsorted(before, before)
        kept = rank < MOST
        starts = np.searchsorted(before[kept], np.arange(self._vocabulary + 1))
        return Counts(
            torch.from_numpy(self._single),
            torch.from_numpy(starts.astype(np.int64)),
            torch.from_numpy(behind[kept].astype(np.int32)),
            torch.from_numpy(times[kept].astype(np.int32)),
        )
