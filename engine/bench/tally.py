"""What one pass over the prompts took and gave, counted from `Round` records and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from engine.events import Admitted, Event, Prefilled, Round
from engine.statistics import Statistics


@dataclass(slots=True)
class Tally:
    """Sums over the counted rounds of the batch.

    A round counts if all rows of the batch were in it, and none for its first time: a first round may carry the
    draft's own prefill, and a batch that has begun to empty is a smaller batch. Where that leaves nothing (replies of
    one round), all rounds count.
    """

    rounds: int = 0
    """Rounds of the batch: one pass of the target each."""
    seconds: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    steps: int = 0
    """Draft steps: the longest draft of each round, summed."""
    positions: int = 0
    """Tokens in the cache, summed over rows and rounds."""
    draft_positions: int = 0
    """The same for the draft's cache: summed over draft steps too."""
    lengths: Counter[int] = field(default_factory=Counter)
    """How many drafts were for each number of positions, over rows and rounds."""
    verified: int = 0
    """Drafted tokens in the target's passes, over rows and rounds."""
    figures: Statistics = field(default_factory=Statistics)
    """Acceptance, τ and α, as everywhere."""
    counted: list[tuple[Sequence[Round], float]] = field(default_factory=list)
    """What was added, so that passes can be put together."""

    @property
    def tokens(self) -> int:
        """Tokens emitted by all rows."""
        return self.figures.emitted

    @property
    def rest_s(self) -> float:
        """All that is neither draft nor verification, the way from one round to the next included."""
        return self.seconds - self.draft_s - self.verify_s

    def add(self, rows: Sequence[Round], gap: float) -> None:
        """Count one round of the batch.

        Args:
            rows: its record of each row.
            gap: seconds between the round before it and this one.
        """
        last = rows[-1]  # the row that was concluded last has seen the whole of the round
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
        """Several passes as one."""
        whole = cls()
        for each in tallies:
            for rows, gap in each.counted:
                whole.add(rows, gap)
        return whole


def tally(events: Iterable[Event], batch: int) -> Tally:
    """Count the events of a pass.

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
    """The rounds of the batch, each with the seconds since the one before it; 0 where other work lay between."""
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
