"""Start times of specchat, relative to what it has to import: python -m benchmarks.measure_start.

The first frame is compared with `import textual.app`, an app that is ready and a whole reply with `import torch`. All
take turns, since each depends on other load of the machine. Run it from the repository on a quiet machine, with the
default model in the cache.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

from benchmarks.interface.running import PROGRAM, QUIT, SIZE, load_of_machine
from specchat.engine.config import models_folder
from tests.terminal import Terminal

QUESTION = "hi"
FRAME = "Ask anything"
READY = "ready: ask anything"
ASK = f'specchat ask "{QUESTION}"'


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
        times: dict[str, list[float]] = defaultdict(list)
        for turn in range(pairs + 1):
            if turn == 1:  # the first turn fills the disk cache
                times.clear()
            times["import textual.app"].append(_timed("-c", "import textual.app"))
            times["import torch"].append(_timed("-c", "import torch"))
            frame, ready = _shown(home)
            times["first frame"].append(frame)
            times["ready"].append(ready)
            times[ASK].append(_timed(*PROGRAM, "ask", QUESTION, "--seed", "1"))
    for name, base in (("first frame", "import textual.app"), ("ready", "import torch"), (ASK, "import torch")):
        taken, compared = median(times[name]), median(times[base])
        print(f"  {name:<20} {taken:5.2f} s   {taken / compared:4.2f} x `{base}` ({compared:.2f} s)")


def _timed(*arguments: str) -> float:
    """Seconds of a Python program from its start to its end."""
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def _shown(home: str) -> tuple[float, float]:
    """Seconds from the command to the first frame, and to an app that can be asked."""
    started = time.perf_counter()
    with Terminal(sys.executable, *PROGRAM, SPECCHAT_HOME=home, **SIZE) as terminal:
        terminal.wait_for(FRAME)
        frame = time.perf_counter() - started
        terminal.wait_for(READY)
        ready = time.perf_counter() - started
        terminal.leave(QUIT)
    return frame, ready


if __name__ == "__main__":
    main()
