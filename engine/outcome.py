"""A round's decisions on their way to the host: one copy for the whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.acceptance import Verdict
from engine.drafters.proposal import Proposal
from engine.sampling import broken


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one round decided for one row, on the host, before the reply's own limits are applied."""

    gamma: int
    drafted: list[int]
    accepted: int
    last: int
    p: list[float]
    q: list[float]
    u: list[float]
    beta: list[float]
    detail: list[list[int]]
    """One packed `engine.detail` per position; empty unless asked for."""
    broken: bool
    """The target's logits were not numbers; nothing else here means anything."""


@torch.inference_mode()
def to_host(
    verdict: Verdict,
    logits: Tensor,
    proposal: Proposal,
    gammas: Sequence[int],
    u: NDArray[np.float64],
    details: Tensor | None,
) -> list[Outcome]:
    """Everything the host needs, in the round's one copy from the device.

    Args:
        verdict: what acceptance decided.
        logits: the target's [B, γ+1, V]; only looked at for what is not a number.
        proposal: what was judged.
        gammas: draft lengths asked for, per row.
        u: the uniforms of acceptance [B, γ], on the host already.
        details: what `engine.detail.pack` made, int32 [B, γ+1, n], or None.
    """
    rows, gamma = proposal.tokens.shape
    whole = torch.cat(
        [verdict.accepted[:, None], verdict.last[:, None], broken(logits)[:, None], proposal.tokens], dim=1
    )
    real = torch.cat([verdict.p, verdict.q, verdict.beta], dim=1).float()
    parts = [whole.int(), real.view(torch.int32)]
    if details is not None:
        parts.append(details.reshape(rows, -1))
    host = torch.cat(parts, dim=1).cpu()
    integers = host.tolist()
    reals = host[:, 3 + gamma : 3 + 4 * gamma].contiguous().view(torch.float32).tolist()
    outcomes = []
    for b in range(rows):
        accepted, last, is_broken = integers[b][:3]
        length = proposal.lengths[b]
        tested = min(accepted + 1, length)
        rest = integers[b][3 + 4 * gamma :]
        width = len(rest) // (gamma + 1)
        outcomes.append(
            Outcome(
                gamma=gammas[b],
                drafted=integers[b][3 : 3 + length],
                accepted=accepted,
                last=last,
                p=reals[b][:tested],
                q=reals[b][gamma : gamma + tested],
                u=u[b, :tested].tolist(),
                beta=reals[b][2 * gamma : 2 * gamma + tested],
                detail=[rest[i * width : (i + 1) * width] for i in range(gamma + 1)] if width else [],
                broken=bool(is_broken),
            )
        )
    return outcomes
