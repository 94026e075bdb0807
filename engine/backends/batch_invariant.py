"""Batch-invariant forward passes of fixed shape: one row, `WIDTH` tokens, an extent given by the position.

A kernel's rounding depends on the shape of its operands, so a pass over one token and a pass over five need not agree
in the last bit. Here every pass of the target has the shape [1, `WIDTH`], padded, and attends over a number of columns
that depends on the position of its tokens alone. The remaining assumption, that a row of a matrix product does not
depend on its place in the matrix, is measured by `check_batch_invariance`.
"""

from __future__ import annotations

import statistics
import timeit
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

import torch
from torch import Tensor

from specchat.engine.backends.captured_passes import CapturedPasses, Scores
from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.device.graphs import FIRST

WIDTH = 8
"""Tokens per pass. Longer drafts take several passes, shorter ones are padded."""
_FEWEST_COLUMNS = 256


def extent(position: int, columns: int) -> int:
    """Columns S that a token at `position` attends over: a power of two that holds it, at most `columns`."""
    return min(max(_FEWEST_COLUMNS, 1 << position.bit_length()), columns)


def pieces(start: int, length: int, columns: int) -> Iterator[tuple[int, int]]:
    """Split `length` tokens from position `start` into passes [begin, end) of one extent and at most `WIDTH` tokens."""
    begin = 0
    while begin < length:
        own = extent(start + begin, columns)
        end = min(begin + WIDTH, length, max(own - start, begin + 1))
        yield begin, end
        begin = end


class BatchInvariantPasses:
    """Passes of one shape [1, `WIDTH`]; rows run one after the other.

    Args:
        passes: passes of fixed shapes over chains.
    """

    def __init__(self, passes: CapturedPasses) -> None:
        self._passes, self._columns = passes, passes.cache.columns

    def forward(
        self, tokens: Tensor, slots: Sequence[int], starts: Sequence[int], tree_mask: TreeMask | None = None
    ) -> Scores:
        """Scores of chains [B, T]; trees are not supported: what a token attends to would depend on its branch."""
        assert tree_mask is None
        rows = []
        for row, slot, start in zip(tokens, slots, starts, strict=True):
            cuts = pieces(start, len(row), self._columns)
            rows.append(_joined([self._pass(row[i:j], slot, start + i) for i, j in cuts], dim=1))
        return _joined(rows, dim=0)

    def plan(self) -> None:
        """Plan to capture the passes of every extent, the largest first."""
        for columns in sorted({extent(i, self._columns) for i in range(self._columns)}, reverse=True):
            self._passes.graphs.plan(FIRST, *self._passes.bucket(1, WIDTH, columns))

    def _pass(self, tokens: Tensor, slot: int, start: int) -> Scores:
        """Scores [1, n, …] of n ≤ `WIDTH` tokens of one extent."""
        bucket = self._passes.bucket(1, WIDTH, extent(start, self._columns))
        padded = torch.nn.functional.pad(tokens, (0, WIDTH - len(tokens)))[None]
        numbers = {"index": [0], "start": [start], "slots": [slot]}
        results = self._passes.graphs.call(*bucket, numbers, {"tokens": padded})
        # Copies: the next pass may overwrite these scores.
        logits, *tapped = (part[:, : len(tokens)].clone() for part in results)
        return logits, tapped[0] if tapped else None


def _joined(parts: Sequence[Scores], dim: int) -> Scores:
    """Concatenate the scores of several passes."""
    tapped = [part for _, part in parts if part is not None]
    return torch.cat([logits for logits, _ in parts], dim), torch.cat(tapped, dim) if tapped else None


_START = 250
"""First position tried: the tokens cross the end of the first extent."""
_TOKENS = 16
_PATTERNS = ((WIDTH,), (1,), (3, 1, 5, 2), (13,))
"""Ways of cutting the same tokens into steps: tokens per step, repeated."""
_TIMED = 5


@dataclass(frozen=True, slots=True)
class BatchInvarianceCheck:
    """Result of the check."""

    equal: bool
    """Whether all ways of cutting the same tokens into steps gave the same logits, bit by bit."""
    cost: float
    """Time of a batch-invariant pass / time of an ordinary pass over one token."""


@torch.inference_mode()
def check_batch_invariance(target: Backend) -> BatchInvarianceCheck:
    """Run the same tokens in different steps and compare their logits; overwrites the cache's first slot."""
    generator = torch.Generator().manual_seed(0)
    start = min(_START, target.context - _TOKENS - 1)
    tokens = torch.randint(target.vocabulary, (start + _TOKENS,), generator=generator).to(target.device)
    if start:
        target.prefill(tokens[None, :start], [0], [0])
    found = [_logits(target, tokens[start:], start, pattern) for pattern in _PATTERNS]
    equal = all(torch.equal(found[0], other) for other in found[1:])
    return BatchInvarianceCheck(equal, _cost(target, tokens[start : start + 1], start))


def _logits(target: Backend, tokens: Tensor, start: int, pattern: Sequence[int]) -> Tensor:
    """Logits [T, V] of the tokens, fed in steps of these lengths over and over."""
    found, at, lengths = [], 0, cycle(pattern)
    while at < len(tokens):
        step = tokens[at : at + next(lengths)]
        found.append(target.forward(step[None], [0], [start + at])[0])
        at += len(step)
    return torch.cat(found)


def _cost(target: Backend, token: Tensor, start: int) -> float:
    def seconds(run: Callable[[Tensor, Sequence[int], Sequence[int]], Tensor]) -> float:
        times = timeit.repeat(lambda: run(token[None], [0], [start]).amax().item(), number=1, repeat=_TIMED)
        return statistics.median(times)

    return seconds(target.forward) / seconds(target.forward_fast)
