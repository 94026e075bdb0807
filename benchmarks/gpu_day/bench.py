"""Runs of the engine's benchmark in a process of their own, read from its JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import torch

from specchat.engine import Engine, EngineConfig, Ready, models_folder
from specchat.engine.device.graphs import LATER, Function, Graphs, Signature
from specchat.engine.tools.bench import BenchOptions, run
from specchat.engine.tools.bench.synthetic import synthetic

ON_GPU = torch.cuda.is_available()


def bench(**options: object) -> dict[str, Any]:
    """The report of a run with these `BenchOptions`.

    Raises:
        RuntimeError: it fails; its last line is the message.
    """
    given = json.dumps(options, default=str)
    command = [sys.executable, "-m", "benchmarks.gpu_day.bench", given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{given}: {done.stderr.strip().splitlines()[-1]}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def main() -> None:
    """Run the benchmark with options as JSON, without a command line: little may be installed; print the report."""
    capture_little()
    given: dict[str, Any] = json.loads(sys.argv[1])
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    models = Path(given.pop("models", models_folder()))
    print(
        run(BenchOptions(models=models, command="gpu_day", **given), lambda line: print(line, file=sys.stderr)).json()
    )


def capture_little() -> None:
    """Capture in this process what one chat needs at a start, and else only what was needed: all that an engine plans
    takes minutes."""
    plan_any = Graphs.plan

    def plan(graphs: Graphs, rank: int, key: Hashable, function: Function, signature: Callable[[], Signature]) -> None:
        if rank < LATER:
            plan_any(graphs, rank, key, function, signature)

    Graphs.plan = plan  # type: ignore[method-assign, assignment]


def started(shape: str, slots: int, context: int) -> tuple[Engine, Ready]:
    """An engine with random weights of this shape, once it is ready."""
    engine = Engine(EngineConfig(shape, Path(), slots=slots, context=context), synthetic(1.0, shape))
    engine.start()
    return engine, engine.wait_ready()


if __name__ == "__main__":
    main()
