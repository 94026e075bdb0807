"""`specchat verify`: whether speculation leaves the output alone, on this machine and with these models."""

from __future__ import annotations

from typing import Annotated

import typer

from app.commands.bench import Draft, Drafters, Json, Limit, MaxTokens, Prompts, chosen, progress, typed
from app.commands.options import Device, Dtype, Seed, Target
from app.paths import models_folder

DIFFERS = 1
"""Exit code where something differs beyond its stated tolerance."""


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
        int | None, typer.Option("--contexts", metavar="N", help="Places to sample at, for each drafter.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", metavar="T", help="Of the sampled replies.")
    ] = None,
    seed: Seed = None,
    dtype: Dtype = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Check that drafts do not change the output: greedy token by token, sampled by chi-square. Exit code 1 if so."""
    from engine.verification.command import Options, run

    given = {
        "target": target,
        "draft": draft,
        "drafters": drafter,
        "gamma": gamma,
        "prompts": prompts,
        "limit": limit,
        "max_tokens": max_tokens,
        "samples": samples,
        "contexts": contexts,
        "temperature": temperature,
        "seed": seed,
        "dtype": dtype,
        "device": device,
    }
    options = Options(models=models_folder(), command=typed(), **chosen(given))
    with progress() as say:
        found = run(options, say)
    print(found.report.json() if as_json else found.text())
    if not found.report.passed:
        raise typer.Exit(DIFFERS)
