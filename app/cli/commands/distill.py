"""`specchat distill`: make a draft for a target, on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specchat.app.cli.commands.options import Context, Device, Dtype, Slots, Target
from specchat.app.cli.pull_progress import pull_progress
from specchat.app.errors import UsageError
from specchat.app.sanitize import escape_controls
from specchat.engine import models_folder
from specchat.engine.models import DEFAULT_PRESET

if TYPE_CHECKING:
    from specchat.engine.tools.distill import Distilled


def distill(
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the draft goes.")],
    target: Target = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            metavar="eagle|medusa|pass|bigram",
            help="A head of one layer (if not given), Medusa heads, look-ahead embeddings, or counted tables.",
        ),
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="HEAD",
            help="A finished draft of the same target and kind to begin with, which stays as it is: its folder, or "
            "smollm2-135m for the one that is shipped.",
        ),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option("--minutes", metavar="M", help="Time for text and training, in all calls together.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            metavar="FILE",
            help="Prompts to learn on, one per line; in a .jsonl file the user turns of a conversation per line, as "
            '{"turns": ["Hello", "Tell me more"]}.',
        ),
    ] = None,
    text: Annotated[
        list[Path] | None,
        typer.Option(
            "--text",
            metavar="FILE|FOLDER",
            help="For --kind bigram what to count: plain text, or chats and traces (.json, .jsonl), of which replies "
            "count. Else a folder that was distilled into before, to learn from its text: alone, or with --prompts "
            "beside text that is written now. May be repeated.",
        ),
    ] = None,
    slots: Slots = None,
    context: Context = None,
    dtype: Dtype = None,
    device: Device = None,
) -> None:
    """Make a draft for a target, or take a finished one further.

    The same call again goes on where it stopped; more minutes take it further.
    """
    from specchat.engine.tools.distill import COUNTED, DistillOptions
    from specchat.engine.tools.distill import distill as run

    for name, value in (("minutes", minutes), ("prompts", prompts)) if text and kind == COUNTED else ():
        if value is not None:
            raise UsageError(f"--{name} contradicts --text, which is counted as it is: leave one of them out")
    given = {
        "kind": kind,
        "begin": begin,
        "minutes": minutes,
        "prompts": prompts,
        "text": tuple(text or ()),
        "slots": slots,
        "context": context,
        "dtype": dtype,
        "device": device,
    }
    options = DistillOptions(
        models=models_folder(),
        target=target or DEFAULT_PRESET,
        out=out,
        **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
    )
    with pull_progress(sys.stderr) as progress:
        made = run(options, progress)
    _print(made, out)


def _print(made: Distilled, out: Path) -> None:
    noun = made.noun[0].upper() + made.noun[1:]
    before = f" ({made.steps_before:,} of them before)" if made.steps_before else ""
    steps = f"{made.steps:,} steps{before}, " if made.steps else ""
    print(
        f"{noun} for {escape_controls(made.target)}: {made.tokens:,} tokens of text, {steps}{made.minutes:g} minutes."
    )
    if made.reached:
        print(f"On prompts it has not been made from, drafting {made.gamma} tokens a round:\n")
        print(f"{'':16}{'accepted / tested':>18}   tokens per round   by position")
    for name, reached in made.reached.items():
        places = " ".join(f"{100 * rate:3.0f}" for rate in reached.by_position)
        print(f"{name:16}{100 * reached.rate:16.0f} %   {reached.emitted_per_round:16.2f}   {places} %")
    print(f"\nUse it with: specchat --draft {escape_controls(str(out))}")
