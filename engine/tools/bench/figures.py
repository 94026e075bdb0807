"""Figures of a benchmark: sums over rounds (`Tally`), and the cells of the tables made from them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from specchat.engine.events import Admitted, Event, Prefilled
from specchat.engine.round import Round
from specchat.engine.stats.metrics import Metrics
from specchat.engine.stats.theory import speedup_of_rounds
from specchat.engine.tools.bench.roofline import Traffic
from specchat.engine.tools.runner import NONE, Variant


@dataclass(slots=True)
class Tally:
    """Sums over the counted rounds of the batch.

    A round counts if all rows of the batch took part and it was the first round of none: a first round may include the
    draft's prefill, and a batch with finished rows is a smaller batch. If no such round exists (replies of one round),
    all rounds count.
    """

    rounds: int = 0
    """Rounds of the batch, with one target pass each."""
    seconds: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    steps: int = 0
    """Draft steps: sum over rounds of the longest draft."""
    positions: int = 0
    """Tokens in the target's KV cache, summed over rows and rounds."""
    draft_positions: int = 0
    """Tokens in the draft's KV cache, summed over rows, rounds and draft steps."""
    lengths: Counter[int] = field(default_factory=Counter)
    """Draft length to number of drafts, over rows and rounds."""
    verified: int = 0
    """Drafted tokens in the target's passes, over rows and rounds."""
    figures: Metrics = field(default_factory=Metrics)
    """Acceptance rate, τ and α."""
    counted: list[tuple[Sequence[Round], float]] = field(default_factory=list)
    """Arguments of every `add`, so that tallies can be merged."""

    @property
    def tokens(self) -> int:
        """Tokens emitted by all rows."""
        return self.figures.emitted

    @property
    def rest_s(self) -> float:
        """Seconds outside draft and verification, including the time between rounds."""
        return self.seconds - self.draft_s - self.verify_s

    @property
    def token_s(self) -> float:
        """Seconds per token."""
        return self.seconds / self.tokens

    def add(self, rows: Sequence[Round], gap: float) -> None:
        """Add one round of the batch.

        Args:
            rows: the record of each row.
            gap: seconds between the previous round and this one.
        """
        last = rows[-1]  # the last row's record covers the whole round
        steps = max(row.steps for row in rows)
        positions = sum(row.position for row in rows)
        self.rounds += 1
        self.seconds += last.seconds + gap
        self.draft_s += last.draft_s
        self.verify_s += last.verify_s
        self.steps += steps
        self.positions += positions
        self.draft_positions += steps * positions
        self.counted.append((rows, gap))
        for row in rows:
            self.lengths[row.steps] += 1
            self.verified += row.verified
            self.figures.add(row)

    @classmethod
    def of(cls, counted: Iterable[tuple[Sequence[Round], float]]) -> Tally:
        """Add rounds, each with its gap."""
        whole = cls()
        for rows, gap in counted:
            whole.add(rows, gap)
        return whole

    @classmethod
    def together(cls, tallies: Iterable[Tally]) -> Tally:
        """Merge several passes."""
        return cls.of(each for tally in tallies for each in tally.counted)


def tally(events: Iterable[Event], batch: int) -> Tally:
    """Tally the events of a pass.

    Args:
        events: of all its requests, in any order.
        batch: requests that ran at once.
    """
    in_time = sorted((e for e in events if isinstance(e, Round | Admitted | Prefilled)), key=lambda event: event.at)
    rounds = _rounds(in_time)
    full = [(rows, gap) for rows, gap in rounds if len(rows) == batch and all(row.number for row in rows)]
    return Tally.of(full or rounds)


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


@dataclass(frozen=True, slots=True)
class Place:
    """Position of a cell in the table: prompt set, batch size, temperature."""

    prompts: str
    batch: int
    temperature: float

    def __str__(self) -> str:
        return f"{self.prompts}, batch {self.batch}, temperature {self.temperature:g}"


@dataclass(frozen=True, slots=True)
class Cell:
    """Figures of one variant at one place. Counts are sums over passes, times are medians over passes."""

    prompts: str
    """Name of the prompt set."""
    batch: int
    temperature: float
    drafter: str
    gamma: str
    """Requested γ; auto if the engine chose it, - for plain decoding."""
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
    """Accepted / tested; tokens after a rejection are not tested."""
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
    seconds = statistics.median(p.token_s for p in passes)
    plain_pass = statistics.median(p.verify_s / p.rounds for p in baseline)
    drafts = variant != NONE and whole.steps > 0
    c = statistics.median(p.draft_s / p.steps for p in passes if p.steps) / plain_pass if drafts else None
    read = _bytes_per_token(whole, variant.drafter, traffic)
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
        draft_ms=1000 * statistics.median(p.draft_s / p.rounds for p in passes),
        verify_ms=1000 * statistics.median(p.verify_s / p.rounds for p in passes),
        rest_ms=1000 * statistics.median(p.rest_s / p.rounds for p in passes),
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
        measured_speedup=statistics.median(b.token_s / p.token_s for p, b in zip(passes, baseline, strict=True)),
        bytes_per_token=read,
        bytes_per_second=read / seconds if read is not None else None,
        roofline=read / seconds / bandwidth if read is not None else None,
    )


def _bytes_per_token(counted: Tally, drafter: str, traffic: Traffic) -> float | None:
    """Bytes read per token emitted; None where they are unknown, as with drafters of several kinds of draft steps."""
    if not counted.tokens or drafter in ("hierarchical", "merged") or not traffic.weights:
        return None
    read = counted.rounds * traffic.weights + counted.positions * traffic.cache
    if drafter in ("model", "model-tree", "head", "combined"):
        read += counted.steps * traffic.draft_weights + counted.draft_positions * traffic.draft_cache
    return read / counted.tokens


@dataclass(frozen=True, slots=True)
class Pace:
    """Tokens and the seconds they took: of a reply after its first token (which excludes prefill), or of a prompt."""

    tokens: int
    seconds: float

    @classmethod
    def total(cls, paces: Iterable[Pace]) -> Pace:
        """Sum of several."""
        known = list(paces)
        return cls(sum(pace.tokens for pace in known), sum(pace.seconds for pace in known))

    @property
    def timed(self) -> bool:
        """Whether any token was timed."""
        return self.tokens > 0 and self.seconds > 0

    @property
    def token_s(self) -> float:
        """Seconds per token."""
        return self.seconds / self.tokens


@dataclass(frozen=True, slots=True)
class PeerCell:
    """Speed of a peer; medians over the passes."""

    prompts: str
    batch: int
    temperature: float
    name: str
    gamma: str
    """Draft length; - for plain decoding."""
    tokens: int
    tokens_per_second: float
    measured_speedup: float
    """The engine's time per token of plain decoding / the peer's time per token, pass by pass."""
    variants: dict[str, float]
    """The peer's time per token / that of each of the engine's variants, pass by pass."""


def make_peer_cell(
    place: Place, name: str, gamma: int, paces: Sequence[Pace], ours: Mapping[Variant, Sequence[Tally]]
) -> PeerCell | None:
    """Compute a peer's figures against the engine's variants; None if it timed no tokens."""
    timed = [pace for pace in paces if pace.timed]
    if not timed:
        return None
    ratios = {
        variant: [pace.token_s / tally.token_s for pace, tally in zip(paces, tallies, strict=True) if pace.timed]
        for variant, tallies in ours.items()
    }
    return PeerCell(
        prompts=place.prompts,
        batch=place.batch,
        temperature=place.temperature,
        name=name,
        gamma=str(gamma or "-"),
        tokens=sum(pace.tokens for pace in timed),
        tokens_per_second=statistics.median(1 / pace.token_s for pace in timed),
        measured_speedup=statistics.median(1 / ratio for ratio in ratios[NONE]),
        variants={variant.name: statistics.median(each) for variant, each in ratios.items()},
    )
