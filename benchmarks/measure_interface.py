"""What the interface costs, as a table. Run from the repository: python -m benchmarks.measure_interface [--part PART].

`load`, `markdown` and `keys` play recorded replies in a real terminal, `memory` opens a long stored chat, and
`throughput` asks the default model. The machine should be idle; processor times are the least sensitive to other load.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

from benchmarks.interface.load import keys, markdown, processor
from benchmarks.interface.memory import memory
from benchmarks.interface.running import Row, load_of_machine
from benchmarks.interface.throughput import throughput

PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    "load": lambda: processor(seconds=12),
    "markdown": lambda: markdown(pairs=3, seconds=12),
    "keys": lambda: keys(count=200),
    "memory": lambda: memory(pages=100),
    "throughput": lambda: throughput(pairs=12),
}


def main() -> None:
    """Measure, and print each figure as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, action="append", help="only this one; may be repeated")
    wanted = parser.parse_args().part or list(PARTS)
    for part in wanted:
        print(f"{part}, {load_of_machine()}")
        for name, figure in PARTS[part]():
            print(f"  {name:<42} {figure}", flush=True)


if __name__ == "__main__":
    main()
