"""Trains a draft head further on one GPU, on text that the target writes between updates.

Run from the repository: python -m scripts.train_head TARGET HEAD OUT --prompts FILE.jsonl --minutes N

TARGET is a folder with a Llama network in the format of transformers, HEAD a head for it (`specchat distill`), FILE
what `scripts/make_training_prompts.py` writes. `specchat distill` does the same on any device and for every target, and
keeps its text on disk. Here thousands of conversations are written at once as CUDA graphs, and nothing is stored: a
wave of text is in memory with its hidden states until it was trained on. On a CPU it runs as well, for tests.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scripts.train_head.training import Options, Training
from specchat.engine.errors import EngineError


def main() -> None:
    """Train until the time is over."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.train_head",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", type=Path)
    parser.add_argument("head", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--rows", type=int, default=1536, help="conversations written at once")
    parser.add_argument("--length", type=int, default=768, help="columns of a wave")
    parser.add_argument("--passes", type=float, default=2.0, help="how often a token is trained on")
    try:
        Training(Options(**vars(parser.parse_args()))).run()
    except EngineError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
