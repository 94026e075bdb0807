"""Which drafted tokens the target keeps, and the token it adds: pure functions, no model in sight.

Speculative sampling (Leviathan et al. 2023, section 2.3 and Algorithm 1): a drafted token x ~ q is kept with
probability min(1, p(x) / q(x)); at the first refusal the token is drawn from norm(max(0, p - q)) instead, and if
nothing is refused one more is drawn from p. What comes out is distributed as p, whatever q is (Appendix A.1).

Lenience l < 1 (Appendix A.5) keeps x with probability min(1, p(x) / (l q(x))). The refusal then still draws from
norm(max(0, p - q)), and the guarantee holds that no token comes out with probability above p(x) / l:
- where q(x) ≥ p(x) the residual has nothing, and acceptance gives min(q(x), p(x) / l);
- where q(x) < p(x), x is always accepted, and a refusal, which has probability 1 - Σ min(q, p / l) ≤ 1 - Σ min(q, p) =
  Σ max(0, p - q), adds at most p(x) - q(x): together no more than p(x).
So no other residual could be nearer to p: this one alone adds nothing to a token that has its p(x).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.sampling import SamplingRows, draw


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
    """[B, γ], float32: the probability that a token drafted there is kept: Σ min(p, q), or Σ min(p / l, q)."""


def accept(
    p: Tensor,
    drafted: Tensor,
    lengths: Tensor,
    u: Tensor,
    u_last: Tensor,
    q: Tensor | None = None,
    lenience: Tensor | None = None,
    near: Tensor | None = None,
) -> Verdict:
    """Judge the drafted tokens of every row at once.

    Args:
        p: target distributions [B, γ+1, V], float32; p[b, i] is for the token at draft position i.
        drafted: [B, γ], int64; beyond a row's length anything.
        lengths: [B], int64: how many tokens each row drafted, 0 to γ.
        u: uniform draws [B, γ], float64 in [0, 1), one per drafted token.
        u_last: uniform draws [B], float64, for each row's last token.
        q: the distributions [B, γ, V] each drafted token was drawn from, or None where every draft is certain
            (one-hot q: an n-gram, or any greedy drafter).
        lenience: l of each row [B], float64 in (0, 1]; None where all are 1.
        near: drafted tokens [B, γ], bool, to accept whatever p says (`near_best`); None where there are none.
    """
    gamma = drafted.shape[1]
    p_x = p[:, :gamma].gather(-1, drafted[..., None]).squeeze(-1)
    q_x = torch.ones_like(p_x) if q is None else q.gather(-1, drafted[..., None]).squeeze(-1)
    threshold = u if lenience is None else u * lenience[:, None]
    kept = threshold * q_x.double() < p_x.double()
    beta = _beta(p[:, :gamma], p_x, q, lenience)
    if near is not None:
        kept |= near
        beta = beta.masked_fill(near, 1.0)
    accepted = _leading(kept, lengths)
    rows = torch.arange(len(p), device=p.device)
    last = p[rows, accepted]
    if gamma:
        last = _residual(last, drafted, q, rows, accepted.clamp(max=gamma - 1), accepted < lengths)
    return Verdict(accepted, draw(last, u_last), p_x, q_x, beta)


def accept_greedy(best: Tensor, drafted: Tensor, lengths: Tensor, near: Tensor | None = None) -> Verdict:
    """`accept` where every p is one-hot at `best` [B, γ+1] and every draft certain: keep while they agree."""
    if not drafted.shape[1]:
        nothing = torch.empty(drafted.shape, device=best.device)
        return Verdict(lengths, best[:, 0], nothing, nothing, nothing)
    agrees = best[:, :-1] == drafted
    kept = agrees if near is None else agrees | near
    accepted = _leading(kept, lengths)
    last = best.gather(1, accepted[:, None]).squeeze(1)
    return Verdict(accepted, last, agrees.float(), torch.ones_like(agrees, dtype=torch.float32), kept.float())


def near_best(logits: Tensor, drafted: Tensor, rows: SamplingRows) -> Tensor | None:
    """Drafted tokens that a lenient greedy row accepts though they are not the most likely one.

    The argmax form of lenience (Appendix A.5): x is accepted where p(x) ≥ l max(p), p at temperature 1 and before any
    filter, which is logit(x) - max(logits) ≥ log(l). The paper prints "p(x) ≤ l max(p)"; as that would accept only
    unlikely tokens and refuse the best one, the sign is a slip.

    Args:
        logits: [B, γ+1, V], any float dtype; with bias and penalties, as the greedy token is picked from these.
        drafted: [B, γ], int64.
        rows: settings, B of them.

    Returns:
        [B, γ], bool; False throughout for rows that are not greedy or not lenient. None where no row is both.
    """
    if rows.lenience is None or not rows.lenient_greedy:
        return None
    judged = logits[:, : drafted.shape[1]]
    chosen = judged.gather(-1, drafted[..., None]).squeeze(-1).double()
    ratio = (chosen - judged.amax(-1).double()).exp()
    return (ratio >= rows.lenience[:, None]) & (rows.greedy & (rows.lenience < 1))[:, None]


def _beta(p: Tensor, p_x: Tensor, q: Tensor | None, lenience: Tensor | None) -> Tensor:
    """Σ min(p / l, q) [B, γ] of p and q [B, γ, V]; of p_x where q is certain."""
    if lenience is not None:
        p = p / lenience.float()[:, None, None] if q is not None else p
        p_x = (p_x / lenience.float()[:, None]).clamp_(max=1.0)
    return p_x if q is None else torch.minimum(p, q).sum(-1)


def _leading(kept: Tensor, lengths: Tensor) -> Tensor:
    """How many of each row's first `lengths` entries are True before the first False."""
    position = torch.arange(kept.shape[1], device=kept.device)
    return (kept & (position < lengths[:, None])).long().cumprod(-1).sum(-1)


def _residual(p: Tensor, drafted: Tensor, q: Tensor | None, rows: Tensor, at: Tensor, rejected: Tensor) -> Tensor:
    """max(0, p - q) [B, V] at draft position `at` [B] of rejected rows; p itself where rounding left nothing over.

    Args:
        p: [B, V], float32: each row's p for its last token.
        drafted: [B, γ].
        q: [B, γ, V], or None where every draft is certain.
        rows: 0 to B - 1.
        at: [B], int64.
        rejected: [B], bool; the others keep p.
    """
    if q is None:
        token = drafted[rows, at][:, None]
        left = p.scatter(1, token, p.gather(1, token).masked_fill_(rejected[:, None], 0.0))
    else:
        left = (p - q[rows, at] * rejected[:, None]).clamp_(min=0)
    # One of the two terms is 0 throughout.
    return left.addcmul_(p, (left.amax(-1, keepdim=True) <= 0).float())
