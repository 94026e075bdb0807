"""`specchat bench`: speed on this machine, compared with theory, memory bandwidth and other decoders."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from specchat.app.cli import options
from specchat.app.cli.commands.chat_files import check_picture
from specchat.app.cli.options import opt
from specchat.app.cli.progress import StatusLine
from specchat.app.errors import UsageError
from specchat.app.settings.settings import AUTO, DRAFTERS
from specchat.engine import EngineConfig, models_folder
from specchat.engine.models import DEFAULT_PRESET

if TYPE_CHECKING:
    from specchat.engine.tools.bench import BenchOptions

_MODELS = options.settings(*options.MODELS)
_OF_BEAMS = {
    **options.table(gammas=(list[str], "N|auto", "Draft length; may be repeated; default: auto.")),
    **options.PROMPT_SETS,
    **options.settings("max_tokens"),
}
_OPTIONS = {
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


@options.collect(given=_OPTIONS)
def bench(
    given: options.Given,
    drafts: Annotated[
        list[str] | None, opt("--drafts", "DRAFT,…", "With --crossover: compare these, each in its own run.")
    ] = None,
    picture: Annotated[Path | None, opt("--picture", "FILE.svg", "With --drafts: also write the plot there.")] = None,
    beams: Annotated[int | None, opt("--beams", "N", "Instead: passes that drafts save a search for N beams.")] = None,
    as_json: options.Json = False,
) -> None:
    """Measure in one run how much drafts speed up this machine.

    By default with the models and the drafter of a chat; greedy, without the penalties that a model recommends.
    """
    from specchat.engine.tools.bench import BenchOptions, run

    if beams is not None:
        _measure_beams(beams, given, as_json=as_json)
        return
    chosen = BenchOptions(models=models_folder(), command=options.command_line(), **given)
    if drafts or picture:
        names = dict.fromkeys(name for each in drafts or () for name in each.split(",") if name)
        _compare_drafts(chosen, list(names), picture, as_json=as_json)
        return
    with StatusLine() as line:
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
    from specchat.app.cli.draft_comparison import DraftComparison
    from specchat.engine.tools.bench import run

    if picture is not None:
        check_picture(picture)
    reports = []
    with StatusLine() as line:
        for name in drafts:
            changes: dict[str, Any] = {"drafters": (name,)} if name in DRAFTERS else {"draft": name}
            line.say(f"the draft {name}")
            reports.append(run(replace(chosen, **changes), line.say))
    comparison = DraftComparison(drafts, reports)
    if picture is not None:
        comparison.save_picture(picture)
    if as_json:
        print(json.dumps([json.loads(report.json()) for report in reports], indent=1))
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
    with StatusLine() as line:
        config = EngineConfig(models=models_folder(), **models)
        report = measure_beams(config, beams, line.say, drafter=drafters[0], **chosen)
    print(report.json() if as_json else report.text())
