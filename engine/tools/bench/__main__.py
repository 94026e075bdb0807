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
from specchat.engine.tools.bench.peers import PEERS, VARIABLE
from specchat.engine.tools.prompts import SETS

_LISTS: dict[str, dict[str, Any]] = {
    "--drafter": {"dest": "drafters", "metavar": "NAME", "help": "repeatable, or all; default: the best one"},
    "--gamma": {"dest": "gammas", "metavar": "N", "help": "draft length or auto, which is the default; repeatable"},
    "--batch": {"dest": "batches", "type": int, "metavar": "N", "help": "requests at once; repeatable"},
    "--temperature": {"dest": "temperatures", "type": float, "metavar": "T", "help": "repeatable"},
    "--prompts": {"choices": SETS, "help": "repeatable; default: all sets"},
    "--peer": {"dest": "peers", "choices": PEERS, "help": "repeatable"},
}
_VALUES: dict[str, dict[str, Any]] = {
    "--models": {"type": Path, "default": Path.home() / ".cache" / "specchat" / "models", "help": "folder of models"},
    "--target": {"help": "a preset, a hub id, a folder or a GGUF file"},
    "--draft": {"help": "a draft model, named as the target is"},
    "--limit": {"type": int, "metavar": "N", "help": "prompts of each set"},
    "--max-tokens": {"type": int, "metavar": "N", "help": "longest reply"},
    "--passes": {"type": int, "metavar": "N", "help": "times are medians over this number of passes"},
    "--dtype": {"help": "auto, float32, bfloat16 or float16"},
    "--quantize": {"help": "auto, q8, q4 or none"},
    "--device": {"help": "auto, cpu, cuda, cuda:1, ..."},
    "--llama-cpp": {"type": Path, "metavar": "FOLDER", "help": f"where xllamacpp is installed; default: {VARIABLE}"},
    "--threads": {"type": int, "metavar": "N", "help": "CPU threads, of peers too; default: torch's number"},
    "--prompt-tokens": {"type": int, "metavar": "N", "help": "also measure how fast a prompt of N tokens is read"},
    "--synthetic": {"type": float, "metavar": "ALPHA", "help": "a random-weight pair that agrees at ALPHA of tokens"},
    "--shape": {"metavar": "TARGET/DRAFT", "help": f"model shapes for --synthetic; default: {DEFAULT_SHAPES}"},
}
_FLAGS = {
    "--crossover": "increase the batch until drafting no longer pays",
    "--json": "print one JSON object",
}


def main(arguments: list[str]) -> int:
    """Run the benchmark; returns the exit code: 0, or 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m specchat.engine.tools.bench", description="Measure the engine on this machine."
    )
    for name, about in _VALUES.items():
        parser.add_argument(name, **about)
    for name, about in _LISTS.items():
        parser.add_argument(name, action="append", **about)
    for name, text in _FLAGS.items():
        parser.add_argument(name, action="store_true", help=text)
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
