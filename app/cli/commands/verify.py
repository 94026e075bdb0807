"""`specchat verify`: checks that speculation leaves the output unchanged, on this machine with given models."""

import typer

from specchat.app.cli import options
from specchat.app.cli.progress import StatusLine
from specchat.engine import models_folder

DIFFERS = 1
"""Exit code if something differs beyond its tolerance."""
INTERRUPTED = 130
"""Exit code if ctrl+c ended it and nothing differs so far."""
_OPTIONS = {
    **options.settings(*options.MODELS, "slots", "seed", "max_tokens"),
    **options.table(
        drafters=(list[str], "NAME", "May be repeated; default: all."), gamma=(str, "N|auto", "Draft length.")
    ),
    **options.PROMPT_SETS,
    **options.table(
        samples=(int, "N", "Replies sampled at each place."),
        contexts=(int, "N", "Places to sample at per drafter; default: 2, or --limit if less."),
        temperature=(float, "T", "Temperature of the sampled replies."),
    ),
}


@options.collect(given=_OPTIONS)
def verify(given: options.Given, as_json: options.Json = False) -> None:
    """Check that drafts leave the output unchanged: greedy by token, sampled by chi-square. Exit code 1 if not.

    ctrl+c ends it with a report of the finished checks.
    """
    from specchat.engine.tools.lossless import LosslessOptions, run

    command = options.command_line()
    with StatusLine(as_lines=True) as line:
        found = run(LosslessOptions(models=models_folder(), command=command, **given), line.say)
    print(found.json() if as_json else found.text())
    if not found.passed:
        raise typer.Exit(DIFFERS)
    if found.stopped:
        raise typer.Exit(INTERRUPTED)
