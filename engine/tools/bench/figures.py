"""Figures of a benchmark: bytes that passes read, sums over rounds, and the cells of the tables.

Roofline: decoding one token at a time is bound by reading the weights. A device that reads as fast as it copies can
emit at most bandwidth / bytes per token tokens per second; the fraction reached tells how efficient a decoder is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import mul
from statistics import median
from typing import Any

import torch
from torch.utils.benchmark import Timer

from specchat.engine.device.device import available_memory
from specchat.engine.events import Admitted, Event, Prefilled
from specchat.engine.models.load import held
from specchat.engine.models.packed.load import Model, PackedModel
from specchat.engine.registry import DRAFTERS, Reads
from specchat.engine.round import Round
from specchat.engine.stats.speedup import speedup_of_rounds
from specchat.engine.tools.runner import NONE, Variant, metrics_of
from specchat.engine.worker.assembly import Assembly

COPIED = {"cpu": 256 << 20, "cuda": 1 << 30}
"""Bytes of the block that is copied to measure the bandwidth: far larger than the processor's caches."""
_COPYING_S = 0.4


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that passes have to read; computed, not measured."""

    weights: int
    """Bytes of weights read by one target pass; 0 if unknown (encoder-decoder models)."""
    cache: int
    """Bytes of the target's KV cache per token."""
    draft_weights: int
    """Bytes of weights read by one step of the draft model (the first one), head or block drafter; 0 without any."""
    draft_cache: int

    @classmethod
    def of(cls, assembly: Assembly) -> Traffic:
        """Traffic of loaded models."""
        cache, head = assembly.target.cache, assembly.parts.get("head") or assembly.parts.get("block")
        others = [cache, *(runner.cache for runner in assembly.draft_runners[1:])]
        if head is not None:
            draft_weights = head.weight_bytes + assembly.score_bytes
        else:
            draft_weights = weights_read(assembly.drafts[0]) if assembly.drafts else 0
        return cls(
            weights=weights_read(assembly.model) if assembly.model.start is None else 0,
            cache=cache.column_bytes,
            draft_weights=draft_weights,
            draft_cache=sum(store.column_bytes for store in cache.pool.stores if store not in others),
        )


def weights_read(loaded: Model) -> int:
    """Bytes of weights that one pass reads: all but an untied input embedding, of which it reads a few rows."""
    if isinstance(loaded, PackedModel):
        return loaded.bytes_read
    network: Any = loaded.model
    embedding, head = network.get_input_embeddings(), network.get_output_embeddings()
    (table, size), output = held(embedding), None if head is None else held(head)[0]
    return loaded.weight_bytes - (0 if output is table else size)


class Tally:
    """Sums over the counted rounds of a batch.

    Args:
        counted: the records of each round's rows, and the seconds between the previous round and this one.
    """

    def __init__(self, counted: Sequence[tuple[Sequence[Round], float]]) -> None:
        self.counted = counted
        rounds = [rows for rows, _ in counted]
        last = [rows[-1] for rows in rounds]  # the last row's record covers the whole round
        steps = [max(row.steps for row in rows) for rows in rounds]
        positions = [sum(row.position for row in rows) for rows in rounds]
        self.rounds = len(rounds)
        """Rounds of the batch, with one target pass each."""
        self.seconds = sum(row.seconds for row in last) + sum(gap for _, gap in counted)
        self.draft_s = sum(row.draft_s for row in last)
        self.verify_s = sum(row.verify_s for row in last)
        self.steps = sum(steps)
        """Draft steps: sum over rounds of the longest draft."""
        self.positions = sum(positions)
        """Tokens in the target's KV cache, summed over rows and rounds."""
        self.draft_positions = sum(map(mul, steps, positions))
        """Tokens in the draft's KV cache, summed over rows, rounds and draft steps."""
        self.lengths = Counter(row.steps for rows in rounds for row in rows)
        """Draft length to number of drafts, over rows and rounds."""
        self.verified = sum(row.verified for rows in rounds for row in rows)
        """Drafted tokens in the target's passes, over rows and rounds."""
        self.figures = metrics_of(chain.from_iterable(rounds))
        """Acceptance rate, τ and α."""
        self.tokens = self.figures.emitted
        """Tokens emitted by all rows."""

    @property
    def token_s(self) -> float:
        """Seconds per token."""
        return self.seconds / self.tokens

    @property
    def round_ms(self) -> tuple[float, float, float]:
        """Milliseconds per round of draft, of verification, and of the rest, including the time between rounds."""
        rest = self.seconds - self.draft_s - self.verify_s
        return (1000 * self.draft_s / self.rounds, 1000 * self.verify_s / self.rounds, 1000 * rest / self.rounds)


def tally(events: Iterable[Event], batch: int) -> Tally:
    """Tally the events of a pass.

    A round counts if all rows of the batch took part and it was the first round of none: a first round may include the
    draft's prefill, and a batch with finished rows is a smaller batch. If no such round exists (replies of one round),
    all rounds count.

    Args:
        events: of all its requests, in any order.
        batch: requests that ran at once.
    """
    in_time = sorted((e for e in events if isinstance(e, Round | Admitted | Prefilled)), key=lambda event: event.at)
    rounds = _rounds(in_time)
    full = [(rows, gap) for rows, gap in rounds if len(rows) == batch and all(row.number for row in rows)]
    return Tally(full or rounds)


def _rounds(events: Sequence[Event]) -> list[tuple[list[Round], float]]:
    """Rounds of the batch, each with the seconds since the previous one; 0 if other work was done in between."""
    rounds: list[tuple[list[Round], float]] = []
    rows: list[Round] = []
    before: float | None = None
    for event in events:
        if not isinstance(event, Round):
            before = None
            continue
        rows.append(event)
        if len(rows) == event.rows:
            gap = 0.0 if before is None else max(0.0, rows[0].at - rows[0].seconds - before)
            rounds.append((rows, gap))
            rows, before = [], event.at
    return rounds


def copy_bandwidth(device: torch.device) -> float:
    """Copy bandwidth of the device: bytes read plus bytes written per second, median of several large copies."""
    size, free = COPIED[device.type], available_memory(device)
    if free is not None:
        size = min(size, free // 4)
    source = torch.ones(max(size, 1), dtype=torch.uint8, device=device)
    blocks = {"source": source, "target": torch.empty_like(source)}
    timer = Timer("target.copy_(source)", globals=blocks, num_threads=torch.get_num_threads())
    with torch.cuda.device(device.index if device.type == "cuda" else -1):  # which the timer waits for
        return 2 * source.nbytes / timer.blocked_autorange(min_run_time=_COPYING_S).median


@dataclass(frozen=True, slots=True)
class Place:
    """Position of a cell in the table."""

    prompts: str
    """Name of the prompt set."""
    batch: int
    temperature: float

    def __str__(self) -> str:
        return f"{self.prompts}, batch {self.batch}, temperature {self.temperature:g}"


class Cell:
    """Figures of one variant at one place. Counts are sums over passes, times are medians over passes.

    Args:
        place: of the cell.
        variant: of the cell.
        passes: of the variant.
        baseline: passes of plain decoding.
        traffic: of the models.
        bandwidth: copy bandwidth of the device.
    """

    def __init__(
        self,
        place: Place,
        variant: Variant,
        passes: Sequence[Tally],
        baseline: Sequence[Tally],
        traffic: Traffic,
        bandwidth: float,
    ) -> None:
        whole = Tally([each for tally in passes for each in tally.counted])
        self.prompts, self.batch, self.temperature = place.prompts, place.batch, place.temperature
        self.drafter = variant.drafter
        self.gamma = variant.gamma_text
        """Requested γ; auto if the engine chose it, - for plain decoding."""
        self.tokens = whole.tokens
        """Tokens timed."""
        self.rounds = whole.rounds
        """Rounds of the batch timed."""
        self.tokens_per_second = 1 / median(p.token_s for p in passes)
        """Speed of all rows together, without prefill."""
        times = (median(each) for each in zip(*(p.round_ms for p in passes), strict=True))
        self.draft_ms, self.verify_ms, self.rest_ms = times
        """Milliseconds per round; the rest is outside draft and verification, and includes the time between rounds."""
        self.acceptance = whole.figures.acceptance
        """Accepted / tested; tokens after a rejection are not tested."""
        self.per_position = tuple(whole.figures.per_position)
        """Accepted / tested at draft position 1, 2, …"""
        self.tau = self.mean_emitted_length = whole.figures.mean_emitted_length
        """τ: tokens per row and target pass, the correction or bonus included. The longer name is its old one."""
        self.alpha = alpha = whole.figures.alpha
        """Mean of Σ min(p, q) over the tested positions (Leviathan et al. 2023, Corollary 3.6)."""
        self.mean_drafted = whole.verified / whole.lengths.total()
        """Tokens drafted per row and round."""
        plain_ms = median(p.round_ms[1] for p in baseline)
        drafts = variant != NONE and whole.steps > 0
        c = 1000 * median(p.draft_s / p.steps for p in passes if p.steps) / plain_ms if drafts else None
        self.cost_ratio = c
        """c: time of one draft step / time of a target pass of plain decoding."""
        self.pass_ratio = self.verify_ms / plain_ms if drafts else None
        """Time of a verification / time of a target pass of plain decoding; the paper assumes 1."""
        self.predicted_speedup: float | None = None
        if alpha is not None and c is not None:
            self.predicted_speedup = speedup_of_rounds(min(alpha, 1.0), whole.lengths, c)
        """Theorem 3.8 with these α and c, over the draft lengths of the rounds that were run."""
        self.measured_speedup = median(b.token_s / p.token_s for p, b in zip(passes, baseline, strict=True))
        """Time per token of plain decoding / time per token here; pass by pass, in the same run."""
        self.bytes_per_token = read = _bytes_per_token(whole, variant.drafter, traffic)
        """Bytes of weights and KV cache read per token emitted."""
        self.bytes_per_second = None if read is None else read * self.tokens_per_second
        self.roofline = None if read is None else read * self.tokens_per_second / bandwidth
        """Bytes per second / the device's copy bandwidth."""


def _bytes_per_token(counted: Tally, drafter: str, traffic: Traffic) -> float | None:
    """Bytes read per token emitted; None where they are unknown, as with drafters of several kinds of draft steps."""
    reads = DRAFTERS[drafter].reads
    if not counted.tokens or reads is Reads.OTHER or not traffic.weights:
        return None
    read = counted.rounds * traffic.weights + counted.positions * traffic.cache
    if reads is Reads.DRAFT:
        read += counted.steps * traffic.draft_weights + counted.draft_positions * traffic.draft_cache
    return read / counted.tokens


@dataclass(frozen=True, slots=True)
class Pace:
    """Tokens and the seconds they took: of a reply after its first token (which excludes prefill), or of a prompt."""

    tokens: int
    seconds: float

    @property
    def token_s(self) -> float:
        """Seconds per token."""
        return self.seconds / self.tokens


class PeerCell:
    """Speed of a peer; medians over the passes.

    Args:
        place: of the cell.
        name: of the peer.
        gamma: draft length; 0 for plain decoding.
        paces: of its passes, of which one at least has timed tokens.
        ours: passes of the engine's variants.
    """

    def __init__(
        self, place: Place, name: str, gamma: int, paces: Sequence[Pace], ours: Mapping[Variant, Sequence[Tally]]
    ) -> None:
        timed = [number for number, pace in enumerate(paces) if pace.tokens and pace.seconds]
        self.prompts, self.batch, self.temperature = place.prompts, place.batch, place.temperature
        self.name = name
        self.gamma = str(gamma or "-")
        """Draft length; - for plain decoding."""
        self.tokens = sum(paces[n].tokens for n in timed)
        self.tokens_per_second = median(1 / paces[n].token_s for n in timed)
        self.measured_speedup = median(ours[NONE][n].token_s / paces[n].token_s for n in timed)
        """The engine's time per token of plain decoding / the peer's time per token, pass by pass."""
        self.variants = {
            variant.name: median(paces[n].token_s / tallies[n].token_s for n in timed)
            for variant, tallies in ours.items()
        }
        """The peer's time per token / that of each of the engine's variants, pass by pass."""
