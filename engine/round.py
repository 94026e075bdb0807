"""One round: draft, verify, accept, roll back. The heart of the engine.

The target's cache holds every token of a row but the last. A round feeds that last token g and the drafted t₁ … tₙ in
one pass; the logits at g judge t₁, those at t₁ judge t₂, those at tₙ give the bonus (Leviathan et al. 2023,
Algorithm 1). Rolling back is leaving `Row.cached` at the last token kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.acceptance import Verdict, accept, accept_greedy
from engine.cached_model import CachedModel
from engine.drafters.base import Draft, Drafter
from engine.drafters.proposal import Proposal, merge
from engine.draws import Stream, uniforms
from engine.row import Row
from engine.sampling import SamplingRows, standardise
from engine.stopwatch import Stopwatch


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
    broken: bool
    """The target's logits were not numbers; nothing else here means anything."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the time of a round went, in seconds; what is neither of the two is the rest."""

    draft: float
    verify: float
    started: float


def run_round(
    target: CachedModel,
    rows: Sequence[Row],
    drafters: Mapping[str, Drafter],
    on_fault: Callable[[Row, Exception], None],
) -> tuple[list[Outcome], Timing]:
    """Draft and verify once for every row, together.

    Args:
        target: the model that has the last word.
        rows: rows ready for a round (`Row.prefilled`).
        drafters: by name.
        on_fault: called with a row whose drafter raised; the row goes on without a draft.

    Returns:
        One outcome per row, and the time of the whole round.
    """
    started = time.perf_counter()
    watch = Stopwatch(target.device)
    gammas = [row.draft_room(target.context) for row in rows]
    proposal = merge(_propose(rows, gammas, drafters, on_fault), len(rows), target.device)
    watch.mark()
    fed = torch.cat([torch.tensor([[row.tokens[-1]] for row in rows], device=target.device), proposal.tokens], dim=1)
    logits = target.forward(fed, [row.slot for row in rows], [row.cached for row in rows])
    verdict, u = _judge(logits, rows, proposal)
    outcomes = _to_host(verdict, logits, proposal, gammas, u)
    watch.mark()
    draft_s, verify_s = watch.seconds()
    return outcomes, Timing(draft_s, verify_s, started)


def _propose(
    rows: Sequence[Row],
    gammas: Sequence[int],
    drafters: Mapping[str, Drafter],
    on_fault: Callable[[Row, Exception], None],
) -> list[tuple[list[int], Draft]]:
    """Each drafter's draft, with the rows (by index) it is for."""
    drafts = []
    for name in dict.fromkeys(row.drafter for row in rows):
        mine = [i for i, row in enumerate(rows) if row.drafter == name and gammas[i] > 0]
        if not mine:
            continue
        try:
            draft = drafters[name].propose([rows[i] for i in mine], [gammas[i] for i in mine])
        except Exception as error:  # a drafter is a plug: whatever it raises, the target goes on alone
            for i in mine:
                on_fault(rows[i], error)
            continue
        drafts.append((mine, draft))
    return drafts


@torch.inference_mode()
def _judge(logits: Tensor, rows: Sequence[Row], proposal: Proposal) -> tuple[Verdict, list[list[float]]]:
    """Acceptance for the batch, and the uniforms it used [B][γ]."""
    seeds, numbers = [row.seed for row in rows], [row.rounds for row in rows]
    drafted = proposal.tokens
    lengths = torch.tensor(proposal.lengths, device=logits.device)
    u = uniforms(seeds, numbers, Stream.ACCEPT, drafted.shape[1])
    settings = SamplingRows.of([row.request.sampling for row in rows], logits.device)
    if settings.all_greedy:
        return accept_greedy(logits.argmax(-1), drafted, lengths), u.tolist()
    u_last = uniforms(seeds, numbers, Stream.LAST, 1)[:, 0]
    p = standardise(logits, settings)
    on_device = torch.from_numpy(u).to(logits.device), torch.from_numpy(u_last).to(logits.device)
    return accept(p, drafted, lengths, *on_device, proposal.q), u.tolist()


@torch.inference_mode()
def _to_host(
    verdict: Verdict, logits: Tensor, proposal: Proposal, gammas: Sequence[int], u: list[list[float]]
) -> list[Outcome]:
    """Everything the host needs, in the round's one copy from the device."""
    drafted, lengths = proposal.tokens, proposal.lengths
    broken = logits.amax((1, 2)).isnan()
    whole = torch.cat([verdict.accepted[:, None], verdict.last[:, None], broken[:, None], drafted], dim=1).int()
    real = torch.cat([verdict.p, verdict.q, verdict.beta], dim=1).float()
    host = torch.cat([whole, real.view(torch.int32)], dim=1).cpu()
    gamma = drafted.shape[1]
    whole_host = host[:, : 3 + gamma].tolist()
    real_host = host[:, 3 + gamma :].contiguous().view(torch.float32).tolist()
    outcomes = []
    for b, (ints, reals) in enumerate(zip(whole_host, real_host, strict=True)):
        accepted, last, is_broken = ints[:3]
        tested = min(accepted + 1, lengths[b])
        outcomes.append(
            Outcome(
                gamma=gammas[b],
                drafted=ints[3 : 3 + lengths[b]],
                accepted=accepted,
                last=last,
                p=reals[:tested],
                q=reals[gamma : gamma + tested],
                u=u[b][:tested],
                beta=reals[2 * gamma : 2 * gamma + tested],
                broken=bool(is_broken),
            )
        )
    return outcomes
