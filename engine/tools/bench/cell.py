"""Cell of the benchmark's table: one variant, one prompt set, one batch size, one temperature."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from specchat.engine.stats.theory import speedup_of_rounds
from specchat.engine.tools.bench.plan import NONE, Variant
from specchat.engine.tools.bench.roofline import Traffic
from specchat.engine.tools.bench.tally import Tally


@dataclass(frozen=True, slots=True)
class Cell:
    """Figures of one cell. Counts are sums over passes, times are medians over passes."""

    prompts: str
    """Name of the prompt set."""
    batch: int
    temperature: float
    drafter: str
    gamma: str
    """γ asked for; auto if the engine chose it, - for plain decoding."""
    tokens: int
    """Tokens timed."""
    rounds: int
    """Rounds of the batch timed."""
    tokens_per_second: float
    """Of all rows together, without prefill."""
    draft_ms: float
    """Milliseconds per round, as the next two."""
    verify_ms: float
    rest_ms: float
    """Outside draft and verification, including the time between rounds."""
    acceptance: float | None
    """Accepted / tested; tokens behind a rejection are not tested."""
    per_position: tuple[float, ...]
    """Accepted / tested at draft position 1, 2, …"""
    mean_emitted_length: float | None
    """τ: tokens per row and target pass, the correction or bonus included."""
    alpha: float | None
    """Mean of Σ min(p, q) over the tested positions (Leviathan et al. 2023, Corollary 3.6)."""
    mean_drafted: float
    """Tokens drafted per row and round."""
    cost_ratio: float | None
    """c: time of one draft step / time of a target pass of plain decoding."""
    pass_ratio: float | None
    """Time of a verification / time of a target pass of plain decoding; the paper assumes 1."""
    predicted_speedup: float | None
    """Theorem 3.8 with these α and c, over the draft lengths of the rounds that were run."""
    measured_speedup: float
    """Time per token of plain decoding / time per token here; pass by pass, in the same run."""
    bytes_per_token: float | None
    """Bytes of weights and KV cache read per token emitted."""
    bytes_per_second: float | None
    roofline: float | None
    """Bytes per second / the device's copy bandwidth."""


@dataclass(frozen=True, slots=True)
class Place:
    """Position of a cell in the table: prompt set, batch size, temperature."""

    prompts: str
    batch: int
    temperature: float


def make_cell(
    place: Place,
    variant: Variant,
    passes: Sequence[Tally],
    baseline: Sequence[Tally],
    traffic: Traffic,
    bandwidth: float,
) -> Cell:
    """Compute the figures of a variant from its passes and those of plain decoding."""
    whole = Tally.together(passes)
    seconds = statistics.median(p.seconds / p.tokens for p in passes)
    plain_pass = statistics.median(p.verify_s / p.rounds for p in baseline)
    drafts = variant != NONE and whole.steps > 0
    step = statistics.median(p.draft_s / p.steps for p in passes if p.steps) if drafts else None
    c = step / plain_pass if step is not None else None
    read = traffic.per_token(whole, variant.drafter)
    alpha = whole.figures.alpha
    return Cell(
        prompts=place.prompts,
        batch=place.batch,
        temperature=place.temperature,
        drafter=variant.drafter,
        gamma=variant.gamma_text,
        tokens=whole.tokens,
        rounds=whole.rounds,
        tokens_per_second=1 / seconds,
        draft_ms=_per_round_ms([p.draft_s for p in passes], passes),
        verify_ms=_per_round_ms([p.verify_s for p in passes], passes),
        rest_ms=_per_round_ms([p.rest_s for p in passes], passes),
        acceptance=whole.figures.acceptance,
        per_position=tuple(whole.figures.per_position),
        mean_emitted_length=whole.figures.mean_emitted_length,
        alpha=alpha,
        mean_drafted=whole.verified / whole.lengths.total(),
        cost_ratio=c,
        pass_ratio=statistics.median(p.verify_s / p.rounds for p in passes) / plain_pass if drafts else None,
        predicted_speedup=speedup_of_rounds(min(alpha, 1.0), whole.lengths, c)
        if alpha is not None and c is not None
        else None,
        measured_speedup=statistics.median(
            (b.seconds / b.tokens) / (p.seconds / p.tokens) for p, b in zip(passes, baseline, strict=True)
        ),
        bytes_per_token=read,
        bytes_per_second=read / seconds if read is not None else None,
        roofline=read / seconds / bandwidth if read is not None else None,
    )


def _per_round_ms(sums: Sequence[float], passes: Sequence[Tally]) -> float:
    return 1000 * statistics.median(s / p.rounds for s, p in zip(sums, passes, strict=True))
