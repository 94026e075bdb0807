"""Text for one update of what is trained."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """B sequences of T tokens each."""

    tokens: Tensor
    """[B, T], int64."""
    counted: Tensor
    """[B, T], bool: tokens that count in the loss."""
    tapped: Tensor
    """[B, T, taps x d]; the last d of them are the target's last hidden state."""
    log_total: Tensor
    """[B, T], float32: log-sum-exp of the target's logits over V."""
