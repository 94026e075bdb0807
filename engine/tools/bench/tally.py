"""Tally of one pass over the prompts, computed from `Round` records alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from specchat.engine.events import Admitted, Event, Prefilled
from specchat.engine.round import Round
from specchat.engine.stats.metrics import Metrics


@dataclass(slots=True)
class Tally:
    """Sums over the counted rounds of the batch.

    A round counts if all rows of the batch were in it and it was the first round of none: a first round may include the
    draft's prefill, and a batch with finished rows is a smaller batch. If no round is left (replies of one round), all
    count.
    """

    rounds: int = 0
    """Rounds of the batch, of one target pass each."""
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

    def add(self, rows: Sequence[Round], gap: float) -> None:
        """Add one round of the batch.

        Args:
            rows: its record of each row.
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
    def together(cls, tallies: Iterable[Tally]) -> Tally:
        """Merge several passes."""
        whole = cls()
        for each in tallies:
            for rows, gap in each.counted:
                whole.add(rows, gap)
        return whole


def tally(events: Iterable[Event], batch: int) -> Tally:
    """Tally the events of a pass.

    Args:
        events: of all its requests, in any order.
        batch: requests that ran at once.
    """
    in_time = sorted((e for e in events if isinstance(e, Round | Admitted | Prefilled)), key=lambda event: event.at)
    rounds = _rounds(in_time)
    full = [(rows, gap) for rows, gap in rounds if len(rows) == batch and all(row.number for row in rows)]
    counted = Tally()
    for rows, gap in full or rounds:
        counted.add(rows, gap)
    return counted


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
