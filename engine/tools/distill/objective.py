"""Cross-entropy of a draft head's distributions against the target's, computed in chunks of positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_CHUNK = 256
"""Positions per chunk: their scores fit into a processor's cache."""


@dataclass(frozen=True, slots=True)
class Truth:
    """Target distributions at N positions, in the form they are computed from."""

    hidden: Tensor
    """[N, d], the target's last hidden states."""
    log_total: Tensor
    """[N], float32: log-sum-exp of its logits over V."""
    counted: Tensor
    """[N], bool: positions that count in the loss."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of a head and its target, summed over the positions that count."""

    overlap: Tensor
    """Sum of Σ min(p, q), whose mean is the expected acceptance rate (Leviathan et al. 2023, Corollary 3.6)."""
    top: Tensor
    """Number of positions with the same most likely token among the V' that the head can draft."""
    count: Tensor


def cross_entropy(drafted: Tensor, vocabulary: Tensor, truth: Truth) -> tuple[Tensor, Agreement]:
    """Mean over the counted positions of -Σ p log q.

    Args:
        drafted: [N, d], output states of the head.
        vocabulary: [V', d], the target's output embeddings of the tokens that the head can draft. p is not
            renormalised over them: probability outside adds nothing to the loss.
        truth: of the same positions.
    """
    loss, overlap, top = _CrossEntropy.apply(drafted, vocabulary, truth)  # type: ignore[no-untyped-call]
    return loss, Agreement(overlap, top, truth.counted.sum())


class _CrossEntropy(torch.autograd.Function):
    """Cross-entropy whose gradient with respect to the scores, q Σp - p, is computed in the forward pass."""

    @staticmethod
    def forward(ctx: Any, drafted: Tensor, vocabulary: Tensor, truth: Truth) -> tuple[Tensor, Tensor, Tensor]:
        index = truth.counted.nonzero()[:, 0]
        weight = 1 / max(len(index), 1)
        loss, overlap, top = (torch.zeros((), device=drafted.device) for _ in range(3))
        gradient = torch.zeros_like(drafted)
        for part in torch.split(index, _CHUNK):
            p = (truth.hidden[part] @ vocabulary.T).float().sub_(truth.log_total[part, None]).exp_()
            log_q = (drafted[part] @ vocabulary.T).float().log_softmax(-1)
            loss -= (p * log_q).sum() * weight
            top += (log_q.argmax(-1) == p.argmax(-1)).sum()
            q = log_q.exp_()
            overlap += torch.minimum(p, q).sum()
            toward = q.mul_(p.sum(-1, keepdim=True)).sub_(p).mul_(weight)
            gradient[part] = (toward.to(vocabulary.dtype) @ vocabulary).to(gradient.dtype)
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(overlap, top)
        return loss, overlap, top

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, loss: Tensor, *_: Any) -> tuple[Tensor, None, None]:
        return ctx.saved_tensors[0] * loss, None, None
