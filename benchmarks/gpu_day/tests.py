"""The tests marked `gpu`; without a GPU, those of the same rounds on the pretended device."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu_day.bench import ON_GPU
from benchmarks.gpu_day.section import Row

_ROOT = Path(__file__).resolve().parents[2]


def rows() -> Iterator[Row]:
    """Counts, and a row per failure."""
    chosen = ["tests/engine", "-m", "gpu"] if ON_GPU else ["tests/engine/device", "-m", "not slow and not gpu"]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--continue-on-collection-errors", *chosen]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines()
    yield {"what": "pytest " + " ".join(chosen), "result": lines[-1] if lines else "", "wrong": done.returncode != 0}
    for line in lines:
        if match := re.match(r"(FAILED|ERROR) (\S+)", line):
            yield {"what": match[2], "wrong": True}
