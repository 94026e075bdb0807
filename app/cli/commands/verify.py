"""`specchat verify`: checks that speculation leaves the output unchanged, on this machine with given models."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from specchat.app.cli.commands.bench import Draft, Drafters, Json, Limit, MaxTokens, Prompts, chosen, typed
from specchat.app.cli.commands.options import Context, Device, Dtype, Quantize, Seed, Slots, Target, joined
from specchat.app.cli.status_line import StatusLine
from specchat.engine import models_folder

DIFFERS = 1
"""Exit code where something differs beyond its stated tolerance."""
INTERRUPTED = 130
"""Exit code where it was stopped (ctrl+c) and nothing differs in what was checked until then."""


def verify(
    target: Target = None,
    draft: Draft = None,
    drafter: Drafters = None,
    gamma: Annotated[str | None, typer.Option("--gamma", metavar="N|auto", help="Draft length.")] = None,
    prompts: Prompts = None,
    limit: Limit = None,
    max_tokens: MaxTokens = None,
    samples: Annotated[
        int | None, typer.Option("--samples", metavar="N", help="Replies sampled at each place.")
    ] = None,
    contexts: Annotated[
        int | None,
        typer.Option("--contexts", metavar="N", help="Places to sample at, for each drafter; 2, or --limit if less."),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", metavar="T", help="Of the sampled replies.")
    ] = None,
    seed: Seed = None,
    slots: Slots = None,
    context: Context = None,
    dtype: Dtype = None,
    quantize: Quantize = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Check that drafts leave the output unchanged: greedy by token, sampled by chi-square. Exit code 1 if not.

    ctrl+c ends it with what is finished.
    """
    from specchat.engine.tools.lossless import LosslessOptions, run

    given = {
        "target": target,
        "draft": joined(draft),
        "drafters": drafter,
        "gamma": gamma,
        "prompts": prompts,
        "limit": limit,
        "max_tokens": max_tokens,
        "samples": samples,
        "contexts": contexts,
        "temperature": temperature,
        "seed": seed,
        "slots": slots,
        "context": context,
        "dtype": dtype,
        "quantize": quantize,
        "device": device,
    }
    options = LosslessOptions(models=models_folder(), command=typed(), **chosen(given))
    with StatusLine(sys.stderr, as_lines=True) as line:
        found = run(options, line.say)
    print(found.report.json() if as_json else found.text())
    if not found.report.passed:
        raise typer.Exit(DIFFERS)
    if found.report.stopped:
        raise typer.Exit(INTERRUPTED)
