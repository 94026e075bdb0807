"""`specchat bench`: how fast the engine is here, beside theory, the memory's limit, and its peers."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from app.commands.options import Device, Dtype, Target
from app.paths import models_folder
from app.sanitize import visible

Draft = Annotated[str | None, typer.Option("--draft", metavar="MODEL", help="A draft model, named as the target is.")]
Drafters = Annotated[
    list[str] | None, typer.Option("--drafter", metavar="NAME", help="May be repeated; all if left out.")
]
Prompts = Annotated[
    list[str] | None,
    typer.Option("--prompts", metavar="SET", help="chat, code, copy or structured; may be repeated; all if left out."),
]
Limit = Annotated[int | None, typer.Option("--limit", metavar="N", help="Prompts of each set.")]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", metavar="N", help="Longest reply.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the text.")]


def bench(
    target: Target = None,
    draft: Draft = None,
    drafter: Drafters = None,
    gamma: Annotated[
        list[str] | None, typer.Option("--gamma", metavar="N|auto", help="Draft length; may be repeated.")
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option("--batch", metavar="N", help="Requests at once; may be repeated.")
    ] = None,
    temperature: Annotated[
        list[float] | None, typer.Option("--temperature", metavar="T", help="0 is greedy; may be repeated.")
    ] = None,
    prompts: Prompts = None,
    limit: Limit = None,
    max_tokens: MaxTokens = None,
    passes: Annotated[
        int | None, typer.Option("--passes", metavar="N", help="Times are medians over so many passes.")
    ] = None,
    peer: Annotated[
        list[str] | None, typer.Option("--peer", metavar="loop|transformers|llama.cpp", help="May be repeated.")
    ] = None,
    crossover: Annotated[bool, typer.Option("--crossover", help="Grow the batch until drafting stops paying.")] = False,
    synthetic: Annotated[
        float | None,
        typer.Option("--synthetic", metavar="ALPHA", help="A random-weight pair that agrees at ALPHA of all tokens."),
    ] = None,
    shape: Annotated[str | None, typer.Option("--shape", metavar="TARGET/DRAFT", help="Of the synthetic pair.")] = None,
    dtype: Dtype = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Measure drafters, draft lengths, batches and temperatures against decoding without drafts, in one run."""
    from engine.bench.command import Options, run

    given = {
        "target": target,
        "draft": draft,
        "drafters": drafter,
        "gammas": gamma,
        "batches": batch,
        "temperatures": temperature,
        "prompts": prompts,
        "limit": limit,
        "max_tokens": max_tokens,
        "passes": passes,
        "peers": peer,
        "crossover": crossover or None,
        "synthetic": synthetic,
        "shape": shape,
        "dtype": dtype,
        "device": device,
    }
    options = Options(models=models_folder(), command=typed(), **chosen(given))
    with progress() as say:
        report = run(options, say)
    print(report.json() if as_json else report.text())


def chosen(given: Mapping[str, object]) -> dict[str, Any]:
    """The options that were given, lists as tuples; the others keep the engine's defaults."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in given.items() if v is not None}


def typed() -> str:
    """The command line, for the report."""
    return shlex.join(["specchat", *sys.argv[1:]])


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Shows how far the work is, on one line, to a person who waits."""
    shown = sys.stderr.isatty()

    def say(line: str) -> None:
        if shown:
            print(f"\r\x1b[K{visible(line)}", end="", file=sys.stderr, flush=True)

    try:
        yield say
    finally:
        say("")
