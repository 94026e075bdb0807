"""Which drafted tokens the target keeps, and the token it adds: pure functions, no model in sight.

Speculative sampling (Leviathan et al. 2023, section 2.3 and Algorithm 1): a drafted token x ~ q is kept with
probability min(1, p(x) / q(x)); at the first refusal the token is drawn from norm(max(0, p - q)) instead, and if
nothing is refused one more is drawn from p. What comes out is distributed as p, whatever q is (Appendix A.1).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.sampling import draw


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one verification, per row, on the device."""

    accepted: Tensor
    """[B], int64: drafted tokens kept."""
    last: Tensor
    """[B], int64: the correction, bonus or plain token."""
    p: Tensor
    """[B, γ], float32: p(x) of each drafted token."""
    q: Tensor
    """[B, γ], float32: q(x) of each drafted token."""
    beta: Tensor
    """[B, γ], float32: Σ min(p, q) at each drafted position."""


def accept(p: Tensor, drafted: Tensor, lengths: Tensor, u: Tensor, u_last: Tensor, q: Tensor | None = None) -> Verdict:
    """Judge the drafted tokens of every row at once.

    Args:
        p: target distributions [B, γ+1, V], float32; p[b, i] is for the token at draft position i.
        drafted: [B, γ], int64; beyond a row's length anything.
        lengths: [B], int64: how many tokens each row drafted, 0 to γ.
        u: uniform draws [B, γ], float64 in [0, 1), one per drafted token.
        u_last: uniform draws [B], float64, for each row's last token.
        q: the distributions [B, γ, V] each drafted token was drawn from, or None where every draft is certain
            (one-hot q: an n-gram, or any greedy drafter).
    """
    gamma = drafted.shape[1]
    p_x = p[:, :gamma].gather(-1, drafted[..., None]).squeeze(-1)
    if q is None:
        q_x, beta = torch.ones_like(p_x), p_x
    else:
        q_x = q.gather(-1, drafted[..., None]).squeeze(-1)
        beta = torch.minimum(p[:, :gamma], q).sum(-1)
    accepted = _leading(u * q_x.double() < p_x.double(), lengths)
    at = accepted[:, None, None].expand(-1, 1, p.shape[-1])
    last = p.gather(1, at).squeeze(1)
    if gamma:
        rejected = accepted < lengths
        last = torch.where(rejected[:, None], _residual(last, drafted, q, accepted.clamp(max=gamma - 1)), last)
    return Verdict(accepted, draw(last, u_last), p_x, q_x, beta)


def accept_greedy(best: Tensor, drafted: Tensor, lengths: Tensor) -> Verdict:
    """`accept` where every p is one-hot at `best` [B, γ+1] and every draft certain: keep while they agree."""
    agrees = best[:, :-1] == drafted
    accepted = _leading(agrees, lengths)
    p_x = agrees.float()
    return Verdict(accepted, best.gather(1, accepted[:, None]).squeeze(1), p_x, torch.ones_like(p_x), p_x)


def _leading(kept: Tensor, lengths: Tensor) -> Tensor:
    """How many of each row's first `lengths` entries are True before the first False."""
    position = torch.arange(kept.shape[1], device=kept.device)
    return (kept & (position < lengths[:, None])).long().cumprod(-1).sum(-1)


def _residual(p: Tensor, drafted: Tensor, q: Tensor | None, at: Tensor) -> Tensor:
    """max(0, p - q) [B, V] at draft position `at` [B]; p itself where rounding left nothing over."""
    if q is None:
        left = p.scatter(1, drafted.gather(1, at[:, None]), 0.0)
    else:
        left = (p - q.gather(1, at[:, None, None].expand(-1, 1, q.shape[-1])).squeeze(1)).clamp_(min=0)
    return torch.where(left.sum(-1, keepdim=True) > 0, left, p)
