"""The commands that measure and judge drafts: `specchat bench`, `evaluate`, `verify` and `theory`.

`bench` measures speed on this machine, compared with theory, memory bandwidth and other decoders; `evaluate` and
`verify` look at results, `theory` has the predictions of the paper.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specchat.app.cli import options
from specchat.app.cli.options import opt
from specchat.app.cli.progress import StatusLine
from specchat.app.errors import UsageError
from specchat.app.settings.settings import AUTO, DRAFTERS
from specchat.engine import MAX_GAMMA, EngineConfig, expected_tokens, models_folder, operations, optimal_gamma, speedup
from specchat.engine.models import DEFAULT_PRESET

if TYPE_CHECKING:
    from specchat.engine.tools.bench import BenchOptions

_MODELS = options.settings(*options.MODELS)
_OF_BEAMS = {
    **options.table(gammas=(list[str], "N|auto", "Draft length; may be repeated; default: auto.")),
    **options.PROMPT_SETS,
    **options.settings("max_tokens"),
}
_BENCH = {
    **_MODELS,
    **options.table(drafters=(list[str], "NAME|all", "May be repeated; default: the drafter of a chat.")),
    **_OF_BEAMS,
    **options.table(
        batches=(list[int], "N", "Concurrent requests; may be repeated."),
        temperatures=(list[float], "T", "0 is greedy; may be repeated."),
        passes=(int, "N", "Passes of which each time is the median."),
        peers=(list[str], "loop|transformers|llama.cpp", "May be repeated."),
        llama_cpp=(Path, "FOLDER", "Where `pip install --target FOLDER xllamacpp` put it (or SPECCHAT_LLAMA_CPP)."),
        threads=(int, "N", "CPU threads, also of the peers."),
        prompt_tokens=(int, "N", "Also measure how fast a prompt of N tokens is read."),
        crossover=(bool, None, "Increase the batch until drafting stops paying."),
        synthetic=(float, "ALPHA", "Use a random-weight pair of which ALPHA of all tokens are equal."),
        shape=(str, "TARGET/DRAFT", "Model shapes for --synthetic."),
    ),
    **options.settings("slots"),
}


@options.collect(given=_BENCH)
def bench(
    given: options.Given,
    drafts: Annotated[
        list[str] | None, opt("--drafts", "DRAFT,…", "With --crossover: compare these, each in its own run.")
    ] = None,
    picture: Annotated[Path | None, opt("--picture", "FILE.svg", "With --drafts: also write the plot there.")] = None,
    beams: Annotated[int | None, opt("--beams", "N", "Instead: passes that drafts save a search for N beams.")] = None,
    as_json: options.Json = False,
) -> None:
    """Measure in one run how much drafts speed up this machine, by default with the set-up of a chat."""
    from specchat.engine.tools.bench import BenchOptions, run

    if beams is not None:
        _measure_beams(beams, given, as_json=as_json)
        return
    chosen = BenchOptions(models=models_folder(), command=options.command_line(), **given)
    if drafts or picture:
        names = dict.fromkeys(name for each in drafts or () for name in each.split(",") if name)
        _compare_drafts(chosen, list(names), picture, as_json=as_json)
        return
    with StatusLine(sys.stderr) as line:
        report = run(chosen, line.say)
    print(report.json() if as_json else report.text())


def _compare_drafts(chosen: BenchOptions, drafts: list[str], picture: Path | None, *, as_json: bool) -> None:
    """Measure several drafts by batch, each in its own run.

    Raises:
        UsageError: options contradict each other, or the picture cannot be written.
    """
    if not drafts or not chosen.crossover:
        raise UsageError("--drafts and --picture go with --crossover: name drafts, and let the batch grow")
    if chosen.draft or chosen.drafters != (AUTO,) or chosen.synthetic is not None:
        raise UsageError("--drafts contradicts --draft, --drafter and --synthetic: leave one of them out")
    from specchat.app.cli.draft_comparison import DraftComparison, check_picture
    from specchat.engine.tools.bench import run

    if picture is not None:
        check_picture(picture)
    reports = []
    with StatusLine(sys.stderr) as line:
        for name in drafts:
            changes: dict[str, Any] = {"drafters": (name,)} if name in DRAFTERS else {"draft": name}
            line.say(f"the draft {name}")
            reports.append(run(replace(chosen, **changes), line.say))
    comparison = DraftComparison(drafts, reports)
    if picture is not None:
        comparison.save_picture(picture)
    if as_json:
        print(json.dumps([json.loads(report.json()) for report in reports], indent=1, ensure_ascii=False))
    else:
        print("\n\n".join([*(report.text() for report in reports), comparison.text()]))


def _measure_beams(beams: int, given: options.Given, *, as_json: bool) -> None:
    """Measure beam search.

    Raises:
        UsageError: an option does not apply to it, or there are several drafters.
    """
    from specchat.engine.tools.beams import measure_beams

    for name in given:
        if name not in (*_MODELS, *_OF_BEAMS, "drafters"):
            raise UsageError(f"{options.flag(name)} does not go with --beams")
    drafters = given.get("drafters", (AUTO,))
    if len(drafters) > 1:
        raise UsageError("--beams measures one drafter: name it once")
    models = {"target": DEFAULT_PRESET, **{name: given[name] for name in _MODELS if name in given}}
    chosen = {name: given[name] for name in _OF_BEAMS if name in given}
    with StatusLine(sys.stderr) as line:
        config = EngineConfig(models=models_folder(), **models)
        report = measure_beams(config, beams, line.say, drafter=drafters[0], **chosen)
    print(report.json() if as_json else report.text())


DIFFERS = 1
"""Exit code of `verify` if something differs beyond its tolerance."""
INTERRUPTED = 130
"""Exit code of `verify` if ctrl+c ended it and nothing differs so far."""
_EVALUATED = {
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


@options.collect(given=_EVALUATED, against=_AGAINST)
def evaluate(
    given: options.Given,
    against: options.Given,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…",
            help="Traces, exported chats (JSON), or data sets in JSON or JSON lines: messages, conversations "
            "(ShareGPT), turns and choices (MT-bench, Spec-Bench).",
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

    chosen = EvaluateOptions(models=models_folder(), files=tuple(files), **{"target": DEFAULT_PRESET, **given})
    formats = [against.get(f"against_{name}") for name in ("dtype", "quantize")]
    if not any(formats):
        formats = [given.get(name) for name in ("dtype", "quantize")]
    other = Against(against.get("against", chosen.target), *(each or "auto" for each in formats))
    with StatusLine(sys.stderr) as line:
        found = compare_targets(chosen, other, line.say) if against else run(chosen, line.say)
    print(found.json() if as_json else found.csv().rstrip("\n") if as_csv else found.text())


_VERIFIED = {
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


@options.collect(given=_VERIFIED)
def verify(given: options.Given, as_json: options.Json = False) -> None:
    """Check that drafts leave the output unchanged: greedy by token, sampled by chi-square. Exit code 1 if not.

    ctrl+c ends it with a report of the finished checks.
    """
    from specchat.engine.tools.lossless import LosslessOptions, run

    command = options.command_line()
    with StatusLine(sys.stderr, as_lines=True) as line:
        found = run(LosslessOptions(models=models_folder(), command=command, **given), line.say)
    print(found.json() if as_json else found.text())
    if not found.passed:
        raise typer.Exit(DIFFERS)
    if found.stopped:
        raise typer.Exit(INTERRUPTED)


def theory(
    alpha: Annotated[float, opt("--alpha", "A", "Chance that a drafted token is accepted, 0 to 1.")],
    c: Annotated[float, opt("--c", "C", "Time of a draft step / time of a pass of the target.")] = 0.0,
    as_json: options.Json = False,
) -> None:
    """Print the expected tokens and the speedup of each draft length γ, and the best one."""
    if not 0 <= alpha <= 1:
        raise UsageError(f"--alpha is {alpha:g}: it must be from 0 to 1")
    if not c >= 0:
        raise UsageError(f"--c is {c:g}: it must be 0 or more")
    best = optimal_gamma(alpha, c, MAX_GAMMA)
    rows = [
        {"gamma": gamma, "tokens": expected_tokens(alpha, gamma), "speedup": speedup(alpha, gamma, c)}
        | {"operations": operations(alpha, gamma)}
        for gamma in range(MAX_GAMMA + 1)
    ]
    if as_json:
        print(json.dumps({"alpha": alpha, "c": c, "optimal_gamma": best, "rows": rows}, indent=2))
        return
    print(f"α {alpha:g} · c {c:g}: Leviathan et al. 2023, equation 1, Theorems 3.8 and 3.11\n")
    print(" γ   tokens per pass   speedup   operations of the target per token")
    for row in rows:
        mark = "  ◂ best" if row["gamma"] == best else ""
        print(f"{row['gamma']:>2}{row['tokens']:>18.2f}{row['speedup']:>9.2f}×{row['operations']:>12.2f}×{mark}")
    print(f"\n{_verdict(alpha, c, best)}")


def _verdict(alpha: float, c: float, best: int) -> str:
    if best == 0:
        return "Drafting does not pay: α is not above c (Corollary 3.9)."
    more = f"; γ above {MAX_GAMMA} would give more" if best == MAX_GAMMA else ""
    return f"Best is γ {best}: {speedup(alpha, best, c):.2f}× as fast as one token per pass{more}."
