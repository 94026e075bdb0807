"""Decoding speed while another process keeps one core busy: python -m benchmarks.measure_busy.

The default model decodes without drafts on two cores, alternately alone and with a busy loop on the first core.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from statistics import median

import torch

from benchmarks.interface.running import load_of_machine
from specchat.engine import Engine, EngineConfig, Sampling
from specchat.engine.models import DEFAULT_PRESET
from specchat.engine.tools.bench.suite import measure
from specchat.engine.tools.prompts import Prompt
from specchat.engine.tools.runner import NONE, running

PROMPT = Prompt("Write a short story about a clockmaker and a talking bird.")
TOKENS = 128


def main() -> None:
    """Measure, and print the medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    turns: int = parser.parse_args().turns
    cores = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(len(cores))
    print(f"{turns} turns on cores {cores}, {load_of_machine()}")
    rates: dict[str, list[float]] = {"quiet": [], "busy": []}
    with running(EngineConfig(DEFAULT_PRESET)) as (engine, _, _):
        _rate(engine)
        for _ in range(turns):
            for name, context in (("quiet", nullcontext()), ("busy", _busy(cores[0]))):
                with context:
                    rates[name].append(_rate(engine))
    for name, found in rates.items():
        print(f"  {name:<6} {median(found):6.1f} tokens/s, {min(found):.1f} to {max(found):.1f}")
    ratios = [busy / quiet for quiet, busy in zip(rates["quiet"], rates["busy"], strict=True)]
    print(f"  left   {median(ratios):6.2f}, {min(ratios):.2f} to {max(ratios):.2f}")


def _rate(engine: Engine) -> float:
    """Tokens per second of one reply."""
    done = measure(engine, NONE, [PROMPT], 1, Sampling(temperature=0), TOKENS)
    return done.tokens / done.seconds


@contextmanager
def _busy(core: int) -> Iterator[None]:
    """A process that computes on this core all the time."""
    loop = subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"])
    try:
        yield
    finally:
        loop.kill()
        loop.wait()


if __name__ == "__main__":
    main()
