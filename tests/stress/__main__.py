"""Faults from outside, as one table. Run from the repository: python -m tests.stress [--part PART] [--count N].

The exit code is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator

from tests.stress.damage import damage
from tests.stress.faults import faults
from tests.stress.hostile import hostile
from tests.stress.kills import kills
from tests.stress.sharing import sharing
from tests.stress.table import Row, printed

PARTS: dict[str, tuple[int, Callable[[int], Iterator[Row]]]] = {
    "damage": (1000, damage),
    "kills": (100, kills),
    "faults": (5, faults),
    "sharing": (10, sharing),
    "hostile": (1, lambda count: (row for _ in range(count) for row in hostile())),
}
"""Of each part: how often it is tried in a full run, and its rows."""


def main() -> None:
    """Try everything, say how far it is on stderr, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, action="append", help="only this one; may be repeated")
    parser.add_argument("--count", type=int, help="tries of each part; those of a full run if left out")
    given = parser.parse_args()
    rows: list[Row] = []
    for part in given.part or PARTS:
        count, run = PARTS[part]
        for row in run(given.count or count):
            print(f"{row.name}: {row.tries} tries, {len(row.failures)} failed", file=sys.stderr, flush=True)
            rows.append(row)
    print(printed(rows))
    sys.exit(any(row.failures for row in rows))


if __name__ == "__main__":
    main()
