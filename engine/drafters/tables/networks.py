"""Counted tables as networks: tokens in, logits out, by one look-up."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specchat.engine.device.graphs import Graphs
from specchat.engine.drafters.tables.counts import MOST, Counts


class BigramNetwork:
    """What follows each token of the vocabulary, as often as it was counted.

    Behind a token that was never seen stand the most frequent tokens of all (back-off to the unigram). Tokens that are
    not among the `MOST` likeliest have probability 0, which acceptance takes as it is.

    Args:
        counts: of a text, over V' tokens.
        vocabulary: V, at least V'.
        device: where logits are wanted.
    """

    def __init__(self, counts: Counts, vocabulary: int, device: torch.device) -> None:
        self.device = device
        self._vocabulary = vocabulary
        usual = counts.most_frequent
        lengths = counts.starts.diff()
        tokens = torch.zeros(vocabulary, MOST, dtype=torch.int32)
        logits = torch.full((vocabulary, MOST), -torch.inf)
        tokens[:, : len(usual)] = usual.int()
        logits[:, : len(usual)] = counts.single[usual].float().log()
        seen = lengths.nonzero()[:, 0]
        logits[seen] = -torch.inf
        rows = torch.arange(len(lengths)).repeat_interleave(lengths)
        ranks = torch.arange(len(counts.following)) - counts.starts[:-1].repeat_interleave(lengths)
        tokens[rows, ranks] = counts.following
        logits[rows, ranks] = counts.times.float().log()
        self.likeliest: list[int] = tokens[:, 0].tolist()
        """[V]: what follows each token most often."""
        self._tokens, self._logits = tokens.to(device), logits.to(device)

    def graphs(self, most: int) -> Graphs:
        """Functions on its device, called eagerly."""
        return Graphs(self.device, 1, None, most)

    @property
    def bytes(self) -> int:
        """Memory of the tables."""
        return self._tokens.nbytes + self._logits.nbytes

    def forward(self, inputs: Tensor, slots: Sequence[int], starts: Sequence[int]) -> Tensor:  # noqa: ARG002 no cache
        """Logits [B, 1, V], float32, behind the last of tokens [B, T]: logarithms of counts."""
        last = inputs[:, -1]
        whole = torch.full((len(last), self._vocabulary), -torch.inf, device=self.device)
        # Places that are not used have logit -inf at a token that may be used too: the larger of both counts.
        whole.scatter_reduce_(1, self._tokens[last].long(), self._logits[last], "amax")
        return whole[:, None]


class UnigramNetwork:
    """How often each token stands in the text, whatever is before it.

    Args:
        counts: of a text, over V' tokens.
        vocabulary: V, at least V'.
        device: where logits are wanted.
    """

    def __init__(self, counts: Counts, vocabulary: int, device: torch.device) -> None:
        self.device = device
        logits = torch.full((vocabulary,), -torch.inf)
        logits[: len(counts.single)] = counts.single.float().log()
        self.likeliest = [int(counts.most_frequent[0])] * vocabulary
        """[V]: the most frequent token, behind each."""
        self._logits = logits.to(device)

    def graphs(self, most: int) -> Graphs:
        """Functions on its device, called eagerly."""
        return Graphs(self.device, 1, None, most)

    @property
    def bytes(self) -> int:
        """Memory of the table."""
        return self._logits.nbytes

    def forward(self, inputs: Tensor, slots: Sequence[int], starts: Sequence[int]) -> Tensor:  # noqa: ARG002 no cache
        """Logits [B, 1, V], float32, behind the last of tokens [B, T]: logarithms of counts."""
        return self._logits.expand(len(inputs), 1, -1).contiguous()
