"""What a draft step says, and where it is to continue from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.sequence.sequence import SequenceState


@dataclass(frozen=True, slots=True)
class Scores:
    """What a step says of P places of every row."""

    logits: Tensor
    """[B, P, V'], of the draft vocabulary."""
    best: NDArray[np.int32] | None = None
    """[B x P, `BRANCHES`], the likeliest of the V' tokens, where that costs nothing; else None."""
    shares: NDArray[np.float32] | None = None
    """[B x P, `BRANCHES`], their probabilities at temperature 1."""

    def likeliest(self, count: int) -> Tensor:
        """The `count` likeliest of the V' tokens [B, P, count], int64."""
        if self.best is None or count > self.best.shape[1]:
            return self.logits.topk(count, -1).indices
        return torch.from_numpy(self.best[:, :count]).long().view(*self.logits.shape[:2], count)


@dataclass(frozen=True, slots=True)
class Place:
    """A drafted token that is to be expanded."""

    row: SequenceState
    token: int
    column: int
    """Where its key and value go: so many columns after the last token that is no draft."""
    path: Sequence[int]
    """Such columns of the drafted tokens before it."""
    source: int
    """Which of the places scored in the step before it follows."""
