"""`python -m specchat.engine.tools.bench`: benchmark that needs only torch, transformers and safetensors.

Without an installation: `PYTHONPATH=scripts python -m specchat.engine.tools.bench`.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from specchat.engine.errors import EngineError
from specchat.engine.tools.bench.command import DEFAULT_SHAPES, BenchOptions, run
from specchat.engine.tools.bench.peers import PEERS, VARIABLE
from specchat.engine.tools.prompts import SETS

_OPTIONS: dict[str, tuple[str, str | None, str]] = {
    "models": ("--models", "FOLDER", "folder of models"),
    "target": ("--target", "MODEL", "a preset, a hub id, a folder or a GGUF file"),
    "draft": ("--draft", "MODEL", "a draft model, named as the target is"),
    "drafters": ("--drafter", "NAME", "repeatable, or all; default: the best one"),
    "gammas": ("--gamma", "N", "draft length or auto, which is the default; repeatable"),
    "batches": ("--batch", "N", "requests at once; repeatable"),
    "temperatures": ("--temperature", "T", "repeatable"),
    "prompts": ("--prompts", "SET", f"{', '.join(SETS)}: repeatable; default: all sets"),
    "limit": ("--limit", "N", "prompts of each set"),
    "max_tokens": ("--max-tokens", "N", "longest reply"),
    "passes": ("--passes", "N", "times are medians over this number of passes"),
    "dtype": ("--dtype", "TYPE", "auto, float32, bfloat16 or float16"),
    "quantize": ("--quantize", "CODES", "auto, q8, q4 or none"),
    "device": ("--device", "DEVICE", "auto, cpu, cuda, cuda:1, ..."),
    "peers": ("--peer", "NAME", f"{', '.join(PEERS)}: repeatable"),
    "llama_cpp": ("--llama-cpp", "FOLDER", f"where xllamacpp is installed; default: {VARIABLE}"),
    "threads": ("--threads", "N", "CPU threads, of peers too; default: torch's number"),
    "prompt_tokens": ("--prompt-tokens", "N", "also measure how fast a prompt of N tokens is read"),
    "crossover": ("--crossover", None, "increase the batch until drafting no longer pays"),
    "synthetic": ("--synthetic", "ALPHA", "a random-weight pair that agrees at ALPHA of tokens"),
    "shape": ("--shape", "TARGET/DRAFT", f"model shapes for --synthetic; default: {DEFAULT_SHAPES}"),
}
"""Option, placeholder and help of each field of `BenchOptions`."""


def main(arguments: list[str]) -> int:
    """Run the benchmark; returns the exit code: 0, or 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m specchat.engine.tools.bench", description="Measure the engine on this machine."
    )
    kinds = get_type_hints(BenchOptions)
    for field, (option, metavar, text) in _OPTIONS.items():
        kind = next(iter(get_args(kinds[field])), kinds[field])  # of int | None and tuple[int, ...]: int
        how = {"action": "append"} if get_origin(kinds[field]) is tuple else {}
        more: Any = {"action": "store_true"} if kind is bool else {"metavar": metavar, "type": kind, **how}
        parser.add_argument(option, dest=field, help=text, **more)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(models=Path.home() / ".cache" / "specchat" / "models")
    given = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    as_json = given.pop("json")
    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
    }
    command = shlex.join(["python", "-m", "specchat.engine.tools.bench", *arguments])
    try:
        report = run(BenchOptions(command=command, **options), lambda line: print(line, file=sys.stderr, flush=True))
    except EngineError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print(report.json() if as_json else report.text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
