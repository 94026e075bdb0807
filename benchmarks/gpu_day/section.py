"""One section in a process: python -m benchmarks.gpu_day.section NAME FILE."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_day.bench import ON_GPU

Row = dict[str, Any]
"""`what` was measured, the figures, and `wrong` where a check failed."""


def main() -> None:
    """Run the section and append its rows to the file as they come."""
    name, path = sys.argv[1:]
    if not ON_GPU:  # networks are tiny: threads that wait for each other cost more than they save
        torch.set_num_threads(1)
        os.environ["OMP_NUM_THREADS"] = "1"
    section: Callable[[], Iterator[Row]] = import_module(f"benchmarks.gpu_day.{name}").rows
    with Path(path).open("a", encoding="utf-8") as file:
        for row in section():
            file.write(json.dumps(row) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
