"""What may follow a text: an approximation q of the target's next-token distribution, to draft beams with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from specchat.engine.tools.beams.node import Node

Likely = Sequence[tuple[int, float]]
"""Tokens and their log-probabilities, likeliest first."""


class Guesser(Protocol):
    """One approximation."""

    def following(self, nodes: Sequence[Node], count: int) -> list[Likely]:
        """Up to `count` tokens behind each text."""

    def learn(self, nodes: Sequence[Node], logits: Tensor) -> None:
        """The target has these logits [n, V] behind these texts."""

    def keep(self, ends: Sequence[Node]) -> None:
        """Of all texts, those with these ends go on."""


def likeliest(logits: Tensor, count: int) -> list[Likely]:
    """The `count` likeliest tokens of each of n distributions, from logits [n, V]."""
    found = logits.topk(min(count, logits.shape[1]))
    chances = found.values - logits.logsumexp(-1, keepdim=True)
    return [
        list(zip(tokens, values, strict=True))
        for tokens, values in zip(found.indices.tolist(), chances.tolist(), strict=True)
    ]
