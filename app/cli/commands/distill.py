"""`specchat distill`: make a draft head for a target, on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specchat.app.cli.commands.options import Context, Device, Dtype, Slots, Target
from specchat.app.cli.pull_progress import pull_progress
from specchat.app.sanitize import escape_controls
from specchat.engine import models_folder
from specchat.engine.models import DEFAULT_PRESET

if TYPE_CHECKING:
    from specchat.engine.tools.distill import HeadAcceptance, HeadCard


def distill(
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the draft head goes.")],
    target: Target = None,
    minutes: Annotated[
        float | None, typer.Option("--minutes", metavar="M", help="Time for text and training, in all calls together.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", metavar="FILE", help="Prompts to learn on, one per line."),
    ] = None,
    slots: Slots = None,
    context: Context = None,
    dtype: Dtype = None,
    device: Device = None,
) -> None:
    """Make a draft head for a target. The same call again goes on where it stopped; more minutes take it further."""
    from specchat.engine.tools.distill import DistillOptions
    from specchat.engine.tools.distill import distill as run

    given = {
        "minutes": minutes,
        "prompts": prompts,
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
        card = run(options, progress)
    _print_card(card, out)


def _print_card(card: HeadCard, out: Path) -> None:
    print(
        f"A draft head for {escape_controls(card.target)}: {card.tokens:,} tokens of text, {card.steps:,} steps, ",
        end="",
    )
    print(f"{card.minutes:g} minutes. On prompts it has not been trained on, drafting {card.gamma} tokens a round:\n")
    print(f"{'':16}{'accepted / tested':>18}   tokens per round   by position")
    for name, reached in (("greedy", card.greedy), ("temperature 1", card.sampled)):
        print(f"{name:16}{_line(reached)}")
    print(f"\nUse it with: specchat --draft {escape_controls(str(out))}")


def _line(reached: HeadAcceptance) -> str:
    places = " ".join(f"{100 * rate:3.0f}" for rate in reached.by_position)
    return f"{100 * reached.rate:16.0f} %   {reached.emitted_per_round:16.2f}   {places} %"
