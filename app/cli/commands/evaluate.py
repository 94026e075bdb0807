"""`specchat evaluate`: drafters on text that the target has written already, or two targets on it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from specchat.app.cli.commands.bench import chosen
from specchat.app.cli.commands.options import Context, Device, Draft, Dtype, Quantize, Target, joined
from specchat.app.cli.status_line import StatusLine
from specchat.app.errors import UsageError
from specchat.engine import models_folder
from specchat.engine.models import DEFAULT_PRESET


def evaluate(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…",
            help="Traces, exported chats (JSON), or data sets in JSON or JSON lines: messages, conversations "
            "(ShareGPT), turns and choices (MT-bench, Spec-Bench).",
        ),
    ],
    target: Target = None,
    draft: Draft = None,
    drafters: Annotated[
        list[str] | None, typer.Option("--drafter", metavar="NAME", help="A drafter; may be repeated. All by default.")
    ] = None,
    gammas: Annotated[
        list[int] | None, typer.Option("--gamma", metavar="N", help="A draft length; may be repeated. 4 by default.")
    ] = None,
    temperature: Annotated[
        float,
        typer.Option(
            "--temperature",
            metavar="T",
            help="That the texts were sampled at: α is then the mean of Σ min(p, q) over all places, τ what it gives.",
        ),
    ] = 0.0,
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="Largest number of texts.")] = 100,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", metavar="N", help="Tokens of each text that are used.")
    ] = 500,
    context: Context = None,
    dtype: Dtype = None,
    quantize: Quantize = None,
    device: Device = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="MODEL",
            help="Instead of drafters, compare the target with another: where their choices differ, top-2 gaps, KL.",
        ),
    ] = None,
    against_dtype: Annotated[
        str | None,
        typer.Option("--against-dtype", metavar="TYPE", help="Of the other target; without --against, of the same."),
    ] = None,
    against_quantize: Annotated[
        str | None, typer.Option("--against-quantize", metavar="auto|q8|q4|none", help="The same for its weights.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the tables.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of the tables.")] = False,
) -> None:
    """Acceptance by position, τ, α, c and predicted speedup of any drafters, on text that is there already.

    Below the tables: tokens that one drafter has and another has not, which alt+v in the chat shows on a reply.
    With --against, where two targets, or two formats of one, part on it.
    """
    if as_json and as_csv:
        raise UsageError("--json and --csv contradict each other: choose one")
    two = against or against_dtype or against_quantize
    for name, given in (
        (("draft", draft), ("drafter", drafters), ("gamma", gammas), ("temperature", temperature)) if two else ()
    ):
        if given:
            raise UsageError(f"--{name} contradicts --against, which compares targets: leave one of them out")
    from specchat.engine.tools.evaluate import Against, EvaluateOptions, compare_targets
    from specchat.engine.tools.evaluate import evaluate as run

    options = EvaluateOptions(
        models=models_folder(),
        target=target or DEFAULT_PRESET,
        files=tuple(files),
        draft=joined(draft),
        drafters=tuple(drafters or ()),
        gammas=tuple(gammas or (4,)),
        temperature=temperature,
        limit=limit,
        max_tokens=max_tokens,
        **chosen({"context": context, "dtype": dtype, "quantize": quantize, "device": device}),
    )
    kind = (against_dtype, against_quantize) if against_dtype or against_quantize else (dtype, quantize)
    other = Against(against or options.target, *(each or "auto" for each in kind))
    with StatusLine(sys.stderr) as line:
        found = compare_targets(options, other, line.say) if two else run(options, line.say)
    print(found.json() if as_json else found.csv().rstrip("\n") if as_csv else found.text())
