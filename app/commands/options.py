"""Options that several commands share. All default to None, "not given", so that variables and the settings count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from app.errors import UsageError

Target = Annotated[
    str | None, typer.Option("--target", metavar="MODEL", help="A preset, a hub id, a folder or a GGUF file.")
]
Drafter = Annotated[str | None, typer.Option("--drafter", metavar="none|ngram", help="What proposes tokens.")]
Gamma = Annotated[int | None, typer.Option("--gamma", metavar="N", help="Tokens to draft each round.")]
Temperature = Annotated[float | None, typer.Option("--temperature", metavar="T", help="0 is greedy.")]
TopK = Annotated[int | None, typer.Option("--top-k", metavar="N", help="Keep the N likeliest tokens; 0 keeps all.")]
TopP = Annotated[float | None, typer.Option("--top-p", metavar="P", help="Keep the likeliest tokens that make up P.")]
MinP = Annotated[
    float | None, typer.Option("--min-p", metavar="P", help="Drop tokens below this share of the likeliest.")
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Repeat the same random draws.")]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", metavar="N", help="End the reply after N tokens.")]
Context = Annotated[int | None, typer.Option("--context", metavar="N", help="Tokens of prompt and reply together.")]
Dtype = Annotated[
    str | None, typer.Option("--dtype", metavar="TYPE", help="auto, float32, bfloat16 or float16.", show_default=False)
]
Device = Annotated[str | None, typer.Option("--device", metavar="DEVICE", help="auto, cpu, cuda, cuda:1, …")]


def check(options: Mapping[str, object]) -> None:
    """Refuse options that contradict each other.

    Raises:
        UsageError: they do.
    """
    gamma = options.get("gamma")
    if options.get("drafter") == "none" and gamma:
        raise UsageError(f"--gamma {gamma} contradicts --drafter none, which drafts nothing: leave one of them out")
