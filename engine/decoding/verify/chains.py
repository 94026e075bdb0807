"""Verification of rows whose drafts are chains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from specchat.engine.backends.region import Numbers, Region, Regions
from specchat.engine.decoding.proposal import Proposal
from specchat.engine.decoding.verify import top_logprobs as detail
from specchat.engine.decoding.verify.chain_acceptance import accept, accept_greedy, near_best
from specchat.engine.decoding.verify.outcome import Outcome, Verified, packed
from specchat.engine.device.padding import CAPTURED, captured_width
from specchat.engine.device.to_device import to_device
from specchat.engine.sampling.rng import Stream, uniforms
from specchat.engine.sampling.sampler import broken, most_likely, standardise
from specchat.engine.sampling.sampling_rows import ANY, NUMBERS, SamplingFlags, SamplingRows, setting_numbers
from specchat.engine.sequence.sequence import SequenceState

DETAILED = (1, 5, 17)
"""Widths of verdicts with details, padded."""


@dataclass(frozen=True, slots=True)
class ChainShape:
    """What a graph of chains' verdicts is made for."""

    logits: tuple[int, int, int]
    """Rows, width and vocabulary, padded."""
    flags: SamplingFlags
    details: int
    """Entries per list; 0 for none."""

    @classmethod
    def of(cls, rows: int, logits: Tensor, flags: SamplingFlags, *, details: int = 0) -> ChainShape:
        """The shape that serves for logits [B, T, V], with `rows` rows (`Regions.count`)."""
        width = captured_width(logits.shape[1])
        if not details:
            return cls((rows, width, logits.shape[2]), flags.coarse(rows), 0)
        width = next(each for each in DETAILED if each >= width)  # rare, so of few widths
        return cls((rows, width, logits.shape[2]), ANY, detail.MOST)


class VerifiedChains(Verified):
    """Verified chains of b rows of a batch, with the results still on the device.

    Args:
        mine: [b], indices of the rows in the batch.
        rows: [b], their sequences.
        logits: [b, γ+1, V], the target's.
        proposal: their drafts; γ is the longest.
        gammas: [b], draft lengths asked for.
        regions: verdicts of fixed shape, on a GPU.
    """

    @torch.inference_mode()
    def __init__(
        self,
        mine: Sequence[int],
        rows: Sequence[SequenceState],
        logits: Tensor,
        proposal: Proposal,
        gammas: Sequence[int],
        regions: Regions | None = None,
    ) -> None:
        drafted, device = proposal.tokens, logits.device
        seeds, numbers = [row.seed for row in rows], [row.rounds for row in rows]
        self._u = uniforms(seeds, numbers, Stream.ACCEPT, drafted.shape[1])
        self._lengths, self._gammas = proposal.lengths, gammas
        sampling = [row.request.sampling for row in rows]
        k = max(row.request.detail for row in rows)
        flags = SamplingFlags.of(sampling)
        if k > detail.MOST:
            regions = None
        if regions is not None:
            shape = ChainShape.of(regions.count(len(rows)), logits, flags, details=k)
            on_host: dict[str, ArrayLike] = {"lengths": proposal.lengths}
            if not shape.flags.all_greedy:
                u_last = uniforms(seeds, numbers, Stream.LAST, 1)[:, 0]
                on_host |= {"u": self._u, "u_last": u_last, "settings": setting_numbers(sampling)}
            self._room = shape.logits[1] - 1
            inputs, region = {"logits": logits, "drafted": drafted}, chain_region(regions, shape)
            on_host["drawn"] = [proposal.q is not None]
            if proposal.q is not None and "q" in region.inputs:
                inputs["q"] = proposal.q
            whole = region(on_host, inputs)[0][: len(rows)]
        else:
            settings = SamplingRows.of(sampling, device)
            draws = None
            if not flags.all_greedy:
                u_last = uniforms(seeds, numbers, Stream.LAST, 1)[:, 0]
                draws = to_device(self._u, device), to_device(u_last, device)
            lengths = to_device(proposal.lengths, device)
            whole = _verdict(logits, drafted, lengths, settings, draws, proposal.q, k)
            self._room = drafted.shape[1]
        super().__init__(mine, whole)

    def outcomes(self, host: Tensor) -> list[Outcome]:
        """Outcome of each row, from `packed` on the host."""
        room = self._room
        integers = host.tolist()
        reals = host[:, 3 + room : 3 + 4 * room].contiguous().view(torch.float32).tolist()
        outcomes = []
        for b, length in enumerate(self._lengths):
            accepted, last, is_broken = integers[b][:3]
            tested = min(accepted + 1, length)
            rest = integers[b][3 + 4 * room : self.packed.shape[1]]
            width = len(rest) // (room + 1)
            outcomes.append(
                Outcome(
                    gamma=self._gammas[b],
                    drafted=integers[b][3 : 3 + length],
                    accepted=accepted,
                    last=last,
                    p=reals[b][:tested],
                    q=reals[b][room : room + tested],
                    u=self._u[b, :tested].tolist(),
                    beta=reals[b][2 * room : 2 * room + tested],
                    detail=[rest[i * width : (i + 1) * width] for i in range(room + 1)] if width else [],
                    broken=bool(is_broken),
                )
            )
        return outcomes


def _verdict(
    logits: Tensor,
    drafted: Tensor,
    lengths: Tensor,
    settings: SamplingRows,
    draws: tuple[Tensor, Tensor] | None,
    q: Tensor | None,
    k: int,
) -> Tensor:
    """All that the host needs [b, n], int32.

    Args:
        logits: [b, γ+1, V].
        drafted: [b, γ].
        lengths: [b].
        settings: of b rows.
        draws: uniforms [b, γ] and [b]; None if all rows are greedy.
        q: [b, γ, V]; None if all are one-hot.
        k: entries per list of details; 0 for none.
    """
    near = near_best(logits, drafted, settings)
    p = None
    if draws is None:
        verdict = accept_greedy(most_likely(logits), drafted, lengths, near)
    else:
        p = standardise(logits, settings)
        verdict = accept(p, drafted, lengths, *draws, q, settings.lenience, near)
    details = detail.pack(logits, p, settings.greedy, q, drafted, verdict.last, k) if k else None
    integers = (verdict.accepted, verdict.last, broken(logits, lengths), drafted)
    return packed(integers, (verdict.p, verdict.q, verdict.beta), details)


def chain_region(regions: Regions, shape: ChainShape) -> Region:
    """`_verdict` of a fixed shape."""
    return regions.of(shape, lambda: _region(regions, shape))


def _region(regions: Regions, shape: ChainShape) -> Region:
    device, (rows, width, vocabulary) = regions.pool.device, shape.logits
    gamma, most = width - 1, regions.rows * CAPTURED[-1] * vocabulary
    numbers = Numbers(
        device,
        {"lengths": (rows,), "drawn": (1,)},
        {"u": (rows, gamma), "u_last": (rows,), "settings": (rows, NUMBERS)},
    )
    inputs = {
        "logits": regions.shared("logits", shape.logits, most, torch.float32),
        "drafted": torch.zeros(rows, gamma, dtype=torch.long, device=device),
    }
    if gamma and not shape.flags.all_greedy:
        inputs["q"] = regions.shared("q", (rows, gamma, vocabulary), most, torch.float32)

    def run() -> list[Tensor]:
        settings = SamplingRows.from_numbers(numbers["settings"], shape.flags)
        draws = None if shape.flags.all_greedy else (numbers["u"], numbers["u_last"])
        logits, drafted, lengths, q = inputs["logits"], inputs["drafted"], numbers["lengths"], inputs.get("q")
        if q is not None:
            # Tokens that were not drawn have one-hot distributions; behind a draft an earlier one's are left.
            certain = (numbers["drawn"] == 0).expand(rows, gamma)
            behind = torch.arange(gamma, device=device) >= lengths[:, None]
            q.masked_fill_((certain | behind)[..., None], 0.0)
            q.scatter_add_(-1, drafted[..., None], certain.float()[..., None])
        return [_verdict(logits, drafted, lengths, settings, draws, q, shape.details)]

    return regions.region(numbers, inputs, run)
