"""Acceptance of chain drafts: pure functions of p, q and uniform draws.

Speculative sampling (Leviathan et al. 2023, section 2.3 and Algorithm 1): a drafted token x ~ q is kept with
probability min(1, p(x) / q(x)); at the first rejection a token is drawn from norm(max(0, p - q)) instead, and if
nothing is rejected one more is drawn from p. The output is distributed as p, whatever q is (Appendix A.1).

Lenience l < 1 (Appendix A.5) keeps x with probability min(1, p(x) / (l q(x))). A rejection still draws from
norm(max(0, p - q)), and no token is emitted with probability above p(x) / l:
- where q(x) ≥ p(x) the residual is 0, and acceptance gives min(q(x), p(x) / l);
- where q(x) < p(x), x is always accepted, and a rejection, of probability 1 - Σ min(q, p / l) ≤ 1 - Σ min(q, p) =
  Σ max(0, p - q), adds at most p(x) - q(x): together no more than p(x).
No other residual is nearer to p: this one alone adds nothing to a token that has its p(x) already.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specchat.engine.sampling.sampler import draw
from specchat.engine.sampling.sampling_rows import SamplingRows


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of verifying chains, per row, on the device."""

    accepted: Tensor
    """[B], int64: number of accepted tokens."""
    last: Tensor
    """[B], int64: the correction, bonus or plain token."""
    p: Tensor
    """[B, γ], float32: p(x) of each drafted token."""
    q: Tensor
    """[B, γ], float32: q(x) of each drafted token."""
    beta: Tensor
    """[B, γ], float32: probability that a token drafted there is accepted: Σ min(p, q), or Σ min(p / l, q)."""


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
    """Accept or reject the drafted tokens of all rows.

    Args:
        p: target distributions [B, γ+1, V], float32; p[b, i] is for the token at draft position i.
        drafted: [B, γ], int64; values beyond a row's length are ignored.
        lengths: [B], int64: how many tokens each row drafted, 0 to γ.
        u: uniform draws [B, γ], float64 in [0, 1), one per drafted token.
        u_last: uniform draws [B], float64, for each row's last token.
        q: [B, γ, V], the distribution each drafted token was drawn from, NaN where a drafter computed what is not a
            number; None if all are one-hot (n-gram and greedy drafters).
        lenience: [B], l of each row, float64 in (0, 1]; None if all are 1.
        near: [B, γ], bool, drafted tokens to accept regardless of p (`near_best`); None if there are none.
    """
    gamma = drafted.shape[1]
    p_x = p[:, :gamma].gather(-1, drafted[..., None]).squeeze(-1)
    threshold = u if lenience is None else u * lenience[:, None]
    if q is None:
        q_x = torch.ones_like(p_x)
        kept = threshold < p_x.double()
    else:
        # A token was drawn from something: where q is 0 or not a number the draft is void, and p decides alone.
        q_x = q.gather(-1, drafted[..., None]).squeeze(-1).nan_to_num_(nan=0.0)
        kept = (threshold * q_x.double() < p_x.double()) & (q_x > 0)
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
    """`accept` for one-hot p, at `best` [B, γ+1], and one-hot q: accept while the tokens agree."""
    if not drafted.shape[1]:
        nothing = torch.empty(drafted.shape, device=best.device)
        return Verdict(lengths, best[:, 0], nothing, nothing, nothing)
    agrees = best[:, :-1] == drafted
    kept = agrees if near is None else agrees | near
    accepted = _leading(kept, lengths)
    last = best.gather(1, accepted[:, None]).squeeze(1)
    return Verdict(accepted, last, agrees.float(), torch.ones_like(agrees, dtype=torch.float32), kept.float())


def near_best(logits: Tensor, drafted: Tensor, rows: SamplingRows) -> Tensor | None:
    """Drafted tokens that a lenient greedy row accepts although another is most likely.

    The argmax form of lenience (Appendix A.5): x is accepted where p(x) ≥ l max(p), p at temperature 1 and before any
    filter, which is logit(x) - max(logits) ≥ log(l). The paper prints "p(x) ≤ l max(p)"; as that would accept only
    unlikely tokens and reject the best one, the sign is a misprint.

    Args:
        logits: [B, γ+1, V], any float dtype; with bias and penalties, as for picking the greedy token.
        drafted: [B, γ], int64.
        rows: B settings.

    Returns:
        [B, γ], bool; False for rows that are not greedy or not lenient. None if no row is both.
    """
    if rows.lenience is None or not rows.flags.lenient_greedy:
        return None
    judged = logits[:, : drafted.shape[1]]
    chosen = judged.gather(-1, drafted[..., None]).squeeze(-1).double()
    ratio = (chosen - judged.amax(-1).double()).exp()
    return (ratio >= rows.lenience[:, None]) & (rows.greedy & (rows.lenience < 1))[:, None]


def _beta(p: Tensor, p_x: Tensor, q: Tensor | None, lenience: Tensor | None) -> Tensor:
    """Σ min(p / l, q), [B, γ], of p and q [B, γ, V]; min(p_x / l, 1) where q is one-hot (None)."""
    if lenience is not None:
        p = p / lenience.float()[:, None, None] if q is not None else p
        p_x = (p_x / lenience.float()[:, None]).clamp_(max=1.0)
    return p_x if q is None else torch.minimum(p, q).sum(-1).nan_to_num_(nan=0.0)


def _leading(kept: Tensor, lengths: Tensor) -> Tensor:
    """Count [B] of leading True among each row's first `lengths` entries."""
    position = torch.arange(kept.shape[1], device=kept.device)
    return (kept & (position < lengths[:, None])).long().cumprod(-1).sum(-1)


def _residual(p: Tensor, drafted: Tensor, q: Tensor | None, rows: Tensor, at: Tensor, rejected: Tensor) -> Tensor:
    """Residual max(0, p - q), [B, V], at draft position `at` of rejected rows; p itself where rounding leaves all 0.

    Args:
        p: [B, V], float32: each row's p for its last token.
        drafted: [B, γ].
        q: [B, γ, V], or None if all are one-hot.
        rows: [B], 0 to B - 1.
        at: [B], int64.
        rejected: [B], bool; other rows keep p.
    """
    if q is None:
        token = drafted[rows, at][:, None]
        left = p.scatter(1, token, p.gather(1, token).masked_fill_(rejected[:, None], 0.0))
    else:
        left = (p - q[rows, at].nan_to_num_(nan=0.0) * rejected[:, None]).clamp_(min=0)
    # Adds p where the residual is 0 throughout.
    return left.addcmul_(p, (left.amax(-1, keepdim=True) <= 0).float())
