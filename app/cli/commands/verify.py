"""`specchat verify`: checks that speculation leaves the output unchanged, on this machine with given models."""

from __future__ import annotations

import sys

import typer

from specchat.app.cli import options
from specchat.app.cli.options import option
from specchat.app.cli.progress import StatusLine
from specchat.engine import models_folder

DIFFERS = 1
"""Exit code if something differs beyond its tolerance."""
INTERRUPTED = 130
"""Exit code if ctrl+c ended it and nothing differs so far."""
_OPTIONS = {
    **options.settings(*options.MODELS, "slots", "seed", "max_tokens"),
    "drafters": option(list[str], "--drafter", "NAME", "May be repeated; default: all."),
    "gamma": option(str, "--gamma", "N|auto", "Draft length."),
    "prompts": options.PROMPTS,
    "limit": options.LIMIT,
    "samples": option(int, "--samples", "N", "Replies sampled at each place."),
    "contexts": option(int, "--contexts", "N", "Places to sample at per drafter; default: 2, or --limit if less."),
    "temperature": option(float, "--temperature", "T", "Temperature of the sampled replies."),
}


@options.collect(given=_OPTIONS)
def verify(given: options.Given, as_json: options.Json = False) -> None:
    """Check that drafts leave the output unchanged: greedy by token, sampled by chi-square. Exit code 1 if not.

    ctrl+c ends it with a report of the finished checks.
    """
    from specchat.engine.tools.lossless import LosslessOptions, run

    command = options.command_line()
    with StatusLine(sys.stderr, as_lines=True) as line:
        found = run(LosslessOptions(models=models_folder(), command=command, **given), line.say)
    print(found.report.json() if as_json else found.text())
    if not found.report.passed:
        raise typer.Exit(DIFFERS)
    if found.report.stopped:
        raise typer.Exit(INTERRUPTED)
