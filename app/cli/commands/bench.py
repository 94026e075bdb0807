"""`specchat bench`: speed on this machine, compared with theory, memory bandwidth and other decoders."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specchat.app.cli.commands.options import Context, Device, Dtype, Quantize, Slots, Target, joined
from specchat.app.cli.status_line import StatusLine
from specchat.app.errors import UsageError
from specchat.app.sanitize import escape_controls
from specchat.app.settings.settings import AUTO, DRAFTERS
from specchat.engine import EngineConfig, models_folder
from specchat.engine.models import DEFAULT_PRESET

if TYPE_CHECKING:
    from specchat.engine.tools.bench import BenchOptions

Draft = Annotated[
    list[str] | None,
    typer.Option("--draft", metavar="MODEL", help="A draft model, named as the target is; may be repeated."),
]
Drafters = Annotated[
    list[str] | None, typer.Option("--drafter", metavar="NAME", help="May be repeated; all if left out.")
]
BenchDrafters = Annotated[
    list[str] | None,
    typer.Option("--drafter", metavar="NAME|all", help="May be repeated; the one that a chat uses if left out."),
]
Prompts = Annotated[
    list[str] | None,
    typer.Option("--prompts", metavar="SET", help="chat, code, copy or structured; may be repeated; all if left out."),
]
Limit = Annotated[int | None, typer.Option("--limit", metavar="N", help="Prompts of each set.")]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", metavar="N", help="Longest reply.")]
_SINGULAR = {"batches": "batch", "temperatures": "temperature", "peers": "peer"}
"""Options by the names that the engine has for them."""
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the text.")]


def bench(
    target: Target = None,
    draft: Draft = None,
    drafter: BenchDrafters = None,
    gamma: Annotated[
        list[str] | None, typer.Option("--gamma", metavar="N|auto", help="Draft length; may be repeated. [auto]")
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
        int | None, typer.Option("--passes", metavar="N", help="Times are medians over this number of passes.")
    ] = None,
    peer: Annotated[
        list[str] | None, typer.Option("--peer", metavar="loop|transformers|llama.cpp", help="May be repeated.")
    ] = None,
    llama_cpp: Annotated[
        Path | None,
        typer.Option(
            "--llama-cpp",
            metavar="FOLDER",
            help="For --peer llama.cpp: where `pip install --target FOLDER xllamacpp` put it (or SPECCHAT_LLAMA_CPP); "
            "this environment by default.",
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", metavar="N", help="CPU threads, of the peers too.")
    ] = None,
    prompt_tokens: Annotated[
        int | None,
        typer.Option("--prompt-tokens", metavar="N", help="Also measure how fast a prompt of N tokens is read."),
    ] = None,
    crossover: Annotated[bool, typer.Option("--crossover", help="Grow the batch until drafting stops paying.")] = False,
    drafts: Annotated[
        list[str] | None,
        typer.Option(
            "--drafts",
            metavar="DRAFT,…",
            help="With --crossover: these drafters, draft models, heads or tables in one picture, each in a run of its "
            "own; with commas, or repeated.",
        ),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE.svg", help="With --drafts: write the plot there too.")
    ] = None,
    synthetic: Annotated[
        float | None,
        typer.Option("--synthetic", metavar="ALPHA", help="A random-weight pair that agrees at ALPHA of all tokens."),
    ] = None,
    shape: Annotated[str | None, typer.Option("--shape", metavar="TARGET/DRAFT", help="Of the synthetic pair.")] = None,
    beams: Annotated[
        int | None,
        typer.Option(
            "--beams", metavar="N", help="Instead: what drafts save a search for N beams, as ask --beams does."
        ),
    ] = None,
    slots: Slots = None,
    context: Context = None,
    dtype: Dtype = None,
    quantize: Quantize = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Measure how much faster drafts make this machine, in one run; by default, of the set-up that a chat has."""
    from specchat.engine.tools.bench import BenchOptions, run

    given = {
        "target": target,
        "draft": joined(draft),
        "drafters": drafter,
        "gammas": gamma,
        "batches": batch,
        "temperatures": temperature,
        "prompts": prompts,
        "limit": limit,
        "max_tokens": max_tokens,
        "passes": passes,
        "peers": peer,
        "llama_cpp": llama_cpp,
        "threads": threads,
        "prompt_tokens": prompt_tokens,
        "crossover": crossover or None,
        "synthetic": synthetic,
        "shape": shape,
        "slots": slots,
        "context": context,
        "dtype": dtype,
        "quantize": quantize,
        "device": device,
    }
    if beams is not None:
        _measure_beams(beams, chosen(given), as_json=as_json)
        return
    options = BenchOptions(models=models_folder(), command=typed(), **chosen(given))
    if drafts or picture:
        _race(options, [name for each in drafts or () for name in each.split(",") if name], picture, as_json=as_json)
        return
    with StatusLine(sys.stderr) as line:
        report = run(options, line.say)
    print(report.json() if as_json else report.text())


def _race(options: BenchOptions, drafts: Sequence[str], picture: Path | None, *, as_json: bool) -> None:
    """Several drafts batch by batch, each in a run of its own."""
    if not drafts or not options.crossover:
        raise UsageError("--drafts and --picture go with --crossover: name drafts, and let the batch grow")
    if options.draft or options.drafters != (AUTO,) or options.synthetic is not None:
        raise UsageError("--drafts contradicts --draft, --drafter and --synthetic: leave one of them out")
    from specchat.app.cli.draft_race import check_picture, race_text, racers, save_race
    from specchat.engine.tools.bench import run

    if picture is not None:
        check_picture(picture)
    reports = []
    with StatusLine(sys.stderr) as line:
        for name in dict.fromkeys(drafts):
            how: dict[str, Any] = {"drafters": (name,)} if name in DRAFTERS else {"draft": name}
            line.say(f"the draft {name}")
            reports.append(run(replace(options, **how), line.say))
    found = racers(list(dict.fromkeys(drafts)), reports)
    if picture is not None:
        save_race(found, escape_controls(f"{reports[0].setting.target}, {reports[0].setting.device_name}"), picture)
    if as_json:
        print(json.dumps([json.loads(report.json()) for report in reports], indent=1, ensure_ascii=False))
    else:
        print("\n\n".join([*(report.text() for report in reports), race_text(found)]))


_OF_MODELS = ("target", "draft", "context", "dtype", "quantize", "device")
_OF_BEAMS = ("prompts", "limit", "max_tokens", "gammas")


def _measure_beams(beams: int, given: dict[str, Any], *, as_json: bool) -> None:
    """Measure beam search with the options that it knows.

    Raises:
        UsageError: another one was given, or several drafters.
    """
    from specchat.engine.tools.beams import measure_beams

    drafters = given.pop("drafters", ("auto",))
    others = [name for name in given if name not in (*_OF_MODELS, *_OF_BEAMS)]
    if others:
        raise UsageError(f"--{_SINGULAR.get(others[0], others[0].replace('_', '-'))} does not go with --beams")
    if len(drafters) > 1:
        raise UsageError("--beams measures one drafter: name it once")
    models = {"target": DEFAULT_PRESET, **{name: given[name] for name in _OF_MODELS if name in given}}
    with StatusLine(sys.stderr) as line:
        report = measure_beams(
            EngineConfig(models=models_folder(), **models),
            beams,
            line.say,
            drafter=drafters[0],
            **{name: given[name] for name in _OF_BEAMS if name in given},
        )
    print(report.json() if as_json else report.text())


def chosen(given: Mapping[str, object]) -> dict[str, Any]:
    """The options that were given, lists as tuples; the others keep the engine's defaults."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in given.items() if v is not None}


def typed() -> str:
    """The command line, for the report."""
    return shlex.join(["specchat", *sys.argv[1:]])
