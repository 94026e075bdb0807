"""One row of the table for each thing that was tried, with what went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Row:
    """So many tries of one thing, and a sentence for each that went wrong."""

    name: str
    tries: int = 0
    failures: list[str] = field(default_factory=list)
    note: str = ""

    def add(self, *wrong: str) -> None:
        """One more try; it failed if anything is wrong."""
        self.tries += 1
        if wrong:
            self.failures.append("; ".join(wrong))


def printed(rows: Sequence[Row]) -> str:
    """The table, the failures below it."""
    width = max(len(row.name) for row in rows)
    lines = [f"{'what':<{width}}  tries  failed  note"]
    lines += [f"{r.name:<{width}}  {r.tries:>5}  {len(r.failures):>6}  {r.note}".rstrip() for r in rows]
    lines += [f"FAILED {row.name}: {failure}" for row in rows for failure in row.failures]
    return "\n".join(lines)
