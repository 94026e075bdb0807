"""`python -m specchat.engine.tools.bench`: benchmark that needs only torch, transformers and safetensors.

Without an installation: `PYTHONPATH=scripts python -m specchat.engine.tools.bench`.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from specchat.engine.errors import EngineError
from specchat.engine.tools.bench.command import DEFAULT_SHAPES, BenchOptions, run
from specchat.engine.tools.bench.llama_cpp_library import VARIABLE
from specchat.engine.tools.bench.peers import PEERS
from specchat.engine.tools.bench.prompts import SETS


def main(arguments: list[str]) -> int:
    """Run the benchmark; returns the exit code: 0, or 2 for bad input."""
    given = {name: value for name, value in vars(_parser().parse_args(arguments)).items() if value is not None}
    as_json = given.pop("json")
    options: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in given.items()}
    try:
        command = shlex.join(["python", "-m", "specchat.engine.tools.bench", *arguments])
        report = run(BenchOptions(command=command, **options), lambda line: print(line, file=sys.stderr, flush=True))
    except EngineError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print(report.json() if as_json else report.text())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m specchat.engine.tools.bench", description="Measure the engine on this machine."
    )
    add = parser.add_argument
    add("--models", type=Path, default=Path.home() / ".cache" / "specchat" / "models", help="folder of models")
    add("--target", help="a preset, a hub id, a folder or a GGUF file")
    add("--draft", help="a draft model, named as the target is")
    add(
        "--drafter",
        dest="drafters",
        action="append",
        metavar="NAME",
        help="repeatable, or all; the best one if left out",
    )
    add(
        "--gamma",
        dest="gammas",
        action="append",
        metavar="N",
        help="draft length or auto, which is the default; repeatable",
    )
    add("--batch", dest="batches", action="append", type=int, metavar="N", help="requests at once; repeatable")
    add("--temperature", dest="temperatures", action="append", type=float, metavar="T", help="repeatable")
    add("--prompts", action="append", choices=SETS, help="repeatable; all sets if left out")
    add("--limit", type=int, metavar="N", help="prompts of each set")
    add("--max-tokens", type=int, metavar="N", help="longest reply")
    add("--passes", type=int, metavar="N", help="times are medians over so many")
    add("--dtype", help="auto, float32, bfloat16 or float16")
    add("--quantize", help="auto, q8, q4 or none")
    add("--device", help="auto, cpu, cuda, cuda:1, ...")
    add("--peer", dest="peers", action="append", choices=PEERS, help="repeatable")
    add("--llama-cpp", type=Path, metavar="FOLDER", help=f"llama.cpp's libraries; {VARIABLE}'s if left out")
    add("--threads", type=int, metavar="N", help="CPU threads, of peers too; torch's number if left out")
    add("--prompt-tokens", type=int, metavar="N", help="also measure the reading of a prompt of N tokens")
    add("--crossover", action="store_true", help="grow the batch until drafting stops paying")
    add("--synthetic", type=float, metavar="ALPHA", help="a random-weight pair that agrees at ALPHA of all tokens")
    add("--shape", metavar="TARGET/DRAFT", help=f"of the synthetic pair; {DEFAULT_SHAPES} if left out")
    add("--json", action="store_true", help="print one JSON object")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
