"""Measures whether batch-invariant passes give a token the same logits bit by bit on this device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

import torch
from torch import Tensor

from specchat.engine.backends.batch_invariant import WIDTH
from specchat.engine.decoding.backend import Backend

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
    vocabulary = target.vocabulary
    tokens = torch.randint(vocabulary, (start + _TOKENS,), generator=generator).to(target.device)
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
    def seconds(run: object) -> float:
        times = []
        for _ in range(_TIMED):
            began = time.perf_counter()
            run().amax().item()  # type: ignore[operator]
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    exact = seconds(lambda: target.forward(token[None], [0], [start]))
    return exact / seconds(lambda: target.forward_fast(token[None], [0], [start]))
