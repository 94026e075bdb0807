"""Losses of a draft head's distributions against the target's, computed in chunks of positions.

`cross_entropy` is that of the usual distillation. `acceptance_loss` is the negative logarithm of the chance
α = Σ min(p, q) that a drafted token is accepted (LK losses, likelihood form: Samarin et al. 2026, arXiv 2602.23881):
they are equal if one token has all of p; elsewhere a head that cannot follow p is not made to cover all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_CHUNK = 256
"""Positions per chunk: their scores fit into a processor's cache."""
_LEAST_OVERLAP = 1e-4
"""Lower bound of α in the gradient of its logarithm, so that no position outweighs all others."""
_FADE = 0.8
"""Weight of each draft position's loss relative to the one before (Cai et al. 2024, section 2.2.1; EAGLE-3)."""


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
class Batch:
    """Training text of one update: B sequences of T tokens each."""

    tokens: Tensor
    """[B, T], int64."""
    counted: Tensor
    """[B, T], bool: tokens that count in the loss."""
    tapped: Tensor
    """[B, T, taps x d]; the last d of them are the target's last hidden state."""
    log_total: Tensor
    """[B, T], float32: log-sum-exp of the target's logits over V."""

    def first_rows(self, count: int) -> Batch:
        """The first `count` sequences."""
        return Batch(self.tokens[:count], self.counted[:count], self.tapped[:count], self.log_total[:count])

    def truth(self, positions: Tensor, hidden: int) -> Truth:
        """Target distributions after the tokens at these positions, which judge the tokens after them.

        Args:
            positions: [N], int64, of every sequence.
            hidden: d.
        """
        return Truth(
            self.tapped[:, positions, -hidden:].flatten(0, 1),
            self.log_total[:, positions].flatten(),
            self.counted[:, positions + 1].flatten(),
        )


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of a draft and its target, summed over the counted positions."""

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
    return _loss(drafted, vocabulary, truth, _cross_entropy)


def acceptance_loss(drafted: Tensor, vocabulary: Tensor, truth: Truth) -> tuple[Tensor, Agreement]:
    """Mean over the counted positions of -log Σ min(p, q); arguments as for `cross_entropy`."""
    return _loss(drafted, vocabulary, truth, _acceptance_loss)


def faded(losses: Sequence[Tensor]) -> Tensor:
    """Weighted mean of the losses of draft positions, in order."""
    weights = [_FADE**position for position in range(len(losses))]
    return torch.stack([weight * loss for weight, loss in zip(weights, losses, strict=True)]).sum() / sum(weights)


_Losses = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From p and log q, [N, V'] each, the loss [N] of each position, and its gradient [N, V'] by the scores."""


def _cross_entropy(p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
    return -(p * log_q).sum(-1), log_q.exp().mul_(p.sum(-1, keepdim=True)).sub_(p)


def _acceptance_loss(p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
    q = log_q.exp()
    overlap = torch.minimum(p, q).sum(-1, keepdim=True).clamp_(min=_LEAST_OVERLAP)
    short = torch.where(q < p, q, 0.0)
    return -overlap.log()[:, 0], q.mul_(short.sum(-1, keepdim=True)).sub_(short).div_(overlap)


def _loss(drafted: Tensor, vocabulary: Tensor, truth: Truth, losses: _Losses) -> tuple[Tensor, Agreement]:
    loss, overlap, top = _ChunkedLoss.apply(drafted, vocabulary, truth, losses)  # type: ignore[no-untyped-call]
    return loss, Agreement(overlap, top, truth.counted.sum())


class _ChunkedLoss(torch.autograd.Function):
    """Mean loss whose gradient is computed in the forward pass, while a chunk's scores are in memory."""

    @staticmethod
    def forward(
        ctx: Any, drafted: Tensor, vocabulary: Tensor, truth: Truth, losses: _Losses
    ) -> tuple[Tensor, Tensor, Tensor]:
        index = truth.counted.nonzero()[:, 0]
        weight = 1 / max(len(index), 1)
        loss, overlap, top = (torch.zeros((), device=drafted.device) for _ in range(3))
        gradient = torch.zeros_like(drafted)
        for part in torch.split(index, _CHUNK):
            p = (truth.hidden[part] @ vocabulary.T).float().sub_(truth.log_total[part, None]).exp_()
            log_q = (drafted[part] @ vocabulary.T).float().log_softmax(-1)
            one, toward = losses(p, log_q)
            loss += one.sum() * weight
            top += (log_q.argmax(-1) == p.argmax(-1)).sum()
            overlap += torch.minimum(p, log_q.exp_()).sum()
            gradient[part] = (toward.mul_(weight).to(vocabulary.dtype) @ vocabulary).to(gradient.dtype)
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(overlap, top)
        return loss, overlap, top

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, loss: Tensor, *_: Any) -> tuple[Tensor, None, None, None]:
        return ctx.saved_tensors[0] * loss, None, None, None
