"""`python -m engine.bench`: the benchmark where only torch, transformers and safetensors are installed."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from engine.bench.command import DEFAULT_SHAPES, PEERS, Options, run
from engine.bench.prompts import SETS
from engine.errors import EngineError


def main(arguments: list[str]) -> int:
    """Run it; 0 if all went well, 2 for bad input."""
    given = {name: value for name, value in vars(_parser().parse_args(arguments)).items() if value is not None}
    as_json = given.pop("json")
    options: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in given.items()}
    try:
        command = shlex.join(["python", "-m", "engine.bench", *arguments])
        report = run(Options(command=command, **options), lambda line: print(line, file=sys.stderr, flush=True))
    except EngineError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print(report.json() if as_json else report.text())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine.bench", description="Measure the engine on this machine.")
    add = parser.add_argument
    add("--models", type=Path, default=Path.home() / ".cache" / "specchat" / "models", help="folder of models")
    add("--target", help="a preset, a hub id, a folder or a GGUF file")
    add("--draft", help="a draft model, named as the target is")
    add("--drafter", dest="drafters", action="append", metavar="NAME", help="repeatable; all if left out")
    add("--gamma", dest="gammas", action="append", metavar="N", help="draft length or auto; repeatable")
    add("--batch", dest="batches", action="append", type=int, metavar="N", help="requests at once; repeatable")
    add("--temperature", dest="temperatures", action="append", type=float, metavar="T", help="repeatable")
    add("--prompts", action="append", choices=SETS, help="repeatable; all sets if left out")
    add("--limit", type=int, metavar="N", help="prompts of each set")
    add("--max-tokens", type=int, metavar="N", help="longest reply")
    add("--passes", type=int, metavar="N", help="times are medians over so many")
    add("--dtype", help="auto, float32, bfloat16 or float16")
    add("--device", help="auto, cpu, cuda, cuda:1, ...")
    add("--peer", dest="peers", action="append", choices=PEERS, help="repeatable")
    add("--crossover", action="store_true", help="grow the batch until drafting stops paying")
    add("--synthetic", type=float, metavar="ALPHA", help="a random-weight pair that agrees at ALPHA of all tokens")
    add("--shape", metavar="TARGET/DRAFT", help=f"of the synthetic pair; {DEFAULT_SHAPES} if left out")
    add("--json", action="store_true", help="print one JSON object")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
