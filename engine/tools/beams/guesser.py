"""The likeliest next tokens of a distribution, with their log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

Likely = Sequence[tuple[int, float]]
"""Tokens and their log-probabilities, likeliest first."""


def likeliest(logits: Tensor, count: int) -> list[Likely]:
    """The `count` likeliest tokens of each of n distributions, from logits [n, V]."""
    found = logits.topk(min(count, logits.shape[1]))
    chances = found.values - logits.logsumexp(-1, keepdim=True)
    return [
        list(zip(tokens, values, strict=True))
        for tokens, values in zip(found.indices.tolist(), chances.tolist(), strict=True)
    ]
