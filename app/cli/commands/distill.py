"""`specchat distill`: makes a draft for a target, on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specchat.app.cli import options
from specchat.app.cli.options import opt
from specchat.app.cli.progress import pull_progress
from specchat.app.errors import UsageError
from specchat.app.sanitize import escape_controls
from specchat.engine import models_folder
from specchat.engine.models import DEFAULT_PRESET

if TYPE_CHECKING:
    from specchat.engine.tools.distill import Distilled

_OPTIONS = {
    **options.settings("target"),
    **options.table(
        kind=(str, "eagle|medusa|pass|bigram", "One-layer (default) or Medusa heads, look-ahead embeddings, bigrams."),
        begin=(
            str,
            "HEAD",
            "A finished draft of the same target and kind to start from: its folder, which is not changed, or "
            "smollm2-135m for the head that comes with specchat.",
        ),
        minutes=(float, "M", "Time for text and training, over all calls."),
        prompts=(
            Path,
            "FILE",
            "Prompts for training, one per line; in a .jsonl file the user turns of a conversation per line, as "
            '{"turns": ["Hello", "Tell me more"]}.',
        ),
        text=(
            list[Path],
            "FILE|FOLDER",
            "For --kind bigram, the text to count: plain text, or the replies in chats and traces (.json, .jsonl). For "
            "other kinds, the folder of an earlier distillation whose text is used: alone, or with --prompts in "
            "addition to new text. May be repeated.",
        ),
    ),
    **options.settings("slots", "context", "dtype", "device"),
}


@options.collect(given=_OPTIONS)
def distill(given: options.Given, out: Annotated[Path, opt("--out", "FOLDER", "Folder of the draft.")]) -> None:
    """Make a draft for a target, or train a finished one further.

    The same call again continues an interrupted one; more minutes train the draft further.
    """
    from specchat.engine.tools.distill import COUNTED, DistillOptions
    from specchat.engine.tools.distill import distill as run

    for name in ("minutes", "prompts") if "text" in given and given.get("kind") == COUNTED else ():
        if name in given:
            raise UsageError(f"--{name} contradicts --text, which is counted as it is: leave one of them out")
    chosen = DistillOptions(models=models_folder(), out=out, **{"target": DEFAULT_PRESET, **given})
    with pull_progress(sys.stderr) as progress:
        made = run(chosen, progress)
    _print(made, out)


def _print(made: Distilled, out: Path) -> None:
    noun = made.noun[0].upper() + made.noun[1:]
    before = f" ({made.steps_before:,} of them before)" if made.steps_before else ""
    steps = f"{made.steps:,} steps{before}, " if made.steps else ""
    counts = f"{made.tokens:,} tokens of text, {steps}{made.minutes:g} minutes"
    print(f"{noun} for {escape_controls(made.target)}: {counts}.")
    if made.reached:
        print(f"On held-out prompts, drafting {made.gamma} tokens a round:\n")
        print(f"{'':16}{'accepted / tested':>18}   tokens per round   by position")
    for name, reached in made.reached.items():
        places = " ".join(f"{100 * rate:3.0f}" for rate in reached.by_position)
        print(f"{name:16}{100 * reached.rate:16.0f} %   {reached.emitted_per_round:16.2f}   {places} %")
    print(f"\nUse it with: specchat --draft {escape_controls(str(out))}")
