"""`specchat evaluate`: drafters, or two targets, on text that the target has already written."""

from pathlib import Path
from typing import Annotated

import typer

from specchat.app.cli import options
from specchat.app.cli.options import opt
from specchat.app.cli.progress import StatusLine
from specchat.app.errors import UsageError
from specchat.engine import models_folder

_OPTIONS = {
    **options.settings(*options.MODELS),
    **options.table(
        drafters=(list[str], "NAME", "A drafter; may be repeated; default: all."),
        gammas=(list[int], "N", "A draft length; may be repeated; default: 4."),
        temperature=(float, "T", "Temperature of the texts (default: 0). Above 0, α is the mean of Σ min(p, q)."),
        limit=(int, "N", "Maximum number of texts; default: 100."),
        max_tokens=(int, "N", "Tokens of each text that are used; default: 500."),
    ),
}
_AGAINST = options.table(
    against=(str, "MODEL", "Instead of drafters, compare the target with this one: choices, top-2 gaps, KL."),
    against_dtype=(str, "TYPE", "Type of the other target; without --against, of the same."),
    against_quantize=(str, "auto|q8|q4|none", "Weights of the other target."),
)


@options.collect(given=_OPTIONS, against=_AGAINST)
def evaluate(
    given: options.Given,
    against: options.Given,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…",
            help="Traces, exported chats (JSON), or data sets in JSON or JSON lines: messages, conversations "
            "(ShareGPT), turns and choices (MT-bench, Spec-Bench), with response_format or json_schema.",
        ),
    ],
    as_json: options.Json = False,
    as_csv: Annotated[bool, opt("--csv", None, "Print CSV instead of the tables.")] = False,
) -> None:
    """Acceptance by position, τ, α, c and predicted speedup of any drafters, on existing text.

    A second table counts tokens that one drafter predicts and another does not; in the chat they are among the
    details of a reply. With --against, two targets or two formats of one target are compared instead.
    """
    if as_json and as_csv:
        raise UsageError("--json and --csv contradict each other: choose one")
    for name in ("draft", "drafters", "gammas", "temperature") if against else ():
        if given.get(name):
            raise UsageError(f"{options.flag(name)} contradicts --against, which compares targets: leave one out")
    from specchat.engine.tools.evaluate import Against, EvaluateOptions, compare_targets
    from specchat.engine.tools.evaluate import evaluate as run

    chosen = EvaluateOptions(models=models_folder(), files=tuple(files), **given)
    formats = [against.get(f"against_{name}") for name in ("dtype", "quantize")]
    if not any(formats):
        formats = [given.get(name) for name in ("dtype", "quantize")]
    other = Against(against.get("against", chosen.target), *(each or "auto" for each in formats))
    with StatusLine() as line:
        found = compare_targets(chosen, other, line.say) if against else run(chosen, line.say)
    print(found.json() if as_json else found.csv().rstrip("\n") if as_csv else found.text())
