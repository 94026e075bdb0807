"""Start time of specchat, compared with `import torch` alone: python -m benchmarks.measure_start.

The command and torch's import take turns, since both depend on other load of the machine. Run it from the repository
on a quiet machine, with the default model in the cache.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.interface.running import PROGRAM, QUIT, SIZE, load_of_machine
from specchat.engine.config import models_folder
from tests.terminal import Terminal

QUESTION = "hi"
READY = "ready: ask anything"


def main() -> None:
    """Measure, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5, help="how often each is run")
    pairs: int = parser.parse_args().pairs
    # With this variable, specchat's modules, unlike torch's, would be compiled at each start.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    print(f"{pairs} turns, medians, {load_of_machine()}")
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "models").symlink_to(models_folder())
        runs: dict[str, Callable[[], float]] = {
            "import torch": lambda: _timed("-c", "import torch"),
            f'specchat ask "{QUESTION}"': lambda: _timed(*PROGRAM, "ask", QUESTION, "--seed", "1"),
            "specchat, until it is ready": lambda: _ready(home),
        }
        for run in runs.values():  # fills the disk cache
            run()
        times: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(pairs):
            for name, run in runs.items():
                times[name].append(run())
    base = median(times["import torch"])
    for name, taken in times.items():
        print(f"  {name:<32} {median(taken):5.2f} s   {median(taken) / base:4.2f} x   {min(taken):5.2f} s at best")


def _timed(*arguments: str) -> float:
    """Seconds of a Python program from its start to its end."""
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def _ready(home: str) -> float:
    """Seconds from the command to an app that can be asked."""
    started = time.perf_counter()
    with Terminal(sys.executable, *PROGRAM, SPECCHAT_HOME=home, **SIZE) as terminal:
        terminal.wait_for(READY)
        taken = time.perf_counter() - started
        terminal.leave(QUIT)
    return taken


if __name__ == "__main__":
    main()
