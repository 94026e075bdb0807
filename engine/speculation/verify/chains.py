"""Verification of rows whose drafts are chains."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specchat.engine.runner.to_device import to_device
from specchat.engine.sampling.rng import Stream, uniforms
from specchat.engine.sampling.sampler import SamplingRows, broken, most_likely, standardise
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.speculation.proposal import Proposal
from specchat.engine.speculation.verify import top_logprobs as detail
from specchat.engine.speculation.verify.chain_acceptance import accept, accept_greedy, near_best
from specchat.engine.speculation.verify.outcome import Outcome, Verified, packed


class VerifiedChains(Verified):
    """Verified chains of b rows of a batch, with the results still on the device.

    Args:
        mine: [b], indices of the rows in the batch.
        rows: [b], their sequences.
        logits: [b, γ+1, V], the target's.
        proposal: their drafts; γ is the longest.
        gammas: [b], draft lengths asked for.
    """

    @torch.inference_mode()
    def __init__(
        self,
        mine: Sequence[int],
        rows: Sequence[SequenceState],
        logits: Tensor,
        proposal: Proposal,
        gammas: Sequence[int],
    ) -> None:
        drafted = proposal.tokens
        lengths = to_device(proposal.lengths, logits.device)
        seeds, numbers = [row.seed for row in rows], [row.rounds for row in rows]
        self._u = uniforms(seeds, numbers, Stream.ACCEPT, drafted.shape[1])
        self._lengths, self._gammas = proposal.lengths, gammas
        settings = SamplingRows.of([row.request.sampling for row in rows], logits.device)
        near = near_best(logits, drafted, settings)
        p = None
        if settings.all_greedy:
            verdict = accept_greedy(most_likely(logits), drafted, lengths, near)
        else:
            u_last = uniforms(seeds, numbers, Stream.LAST, 1)[:, 0]
            p = standardise(logits, settings)
            on_device = to_device(self._u, logits.device), to_device(u_last, logits.device)
            verdict = accept(p, drafted, lengths, *on_device, proposal.q, settings.lenience, near)
        k = max(row.request.detail for row in rows)
        details = detail.pack(logits, p, settings.greedy, proposal.q, drafted, verdict.last, k) if k else None
        integers = (verdict.accepted, verdict.last, broken(logits), drafted)
        super().__init__(mine, packed(integers, (verdict.p, verdict.q, verdict.beta), details))

    def outcomes(self, host: Tensor) -> list[Outcome]:
        """Outcome of each row, from `packed` on the host."""
        gamma = self._u.shape[1]
        integers = host.tolist()
        reals = host[:, 3 + gamma : 3 + 4 * gamma].contiguous().view(torch.float32).tolist()
        outcomes = []
        for b, length in enumerate(self._lengths):
            accepted, last, is_broken = integers[b][:3]
            tested = min(accepted + 1, length)
            rest = integers[b][3 + 4 * gamma : self.packed.shape[1]]
            width = len(rest) // (gamma + 1)
            outcomes.append(
                Outcome(
                    gamma=self._gammas[b],
                    drafted=integers[b][3 : 3 + length],
                    accepted=accepted,
                    last=last,
                    p=reals[b][:tested],
                    q=reals[b][gamma : gamma + tested],
                    u=self._u[b, :tested].tolist(),
                    beta=reals[b][2 * gamma : 2 * gamma + tested],
                    detail=[rest[i * width : (i + 1) * width] for i in range(gamma + 1)] if width else [],
                    broken=bool(is_broken),
                )
            )
        return outcomes
