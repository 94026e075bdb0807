"""`specchat models` lists presets and stored models, and downloads models; `specchat distill` makes a draft for one."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specchat.app.cli import options
from specchat.app.cli.options import opt
from specchat.app.cli.progress import pull_progress
from specchat.app.errors import AppError, UsageError
from specchat.app.paths import database_file
from specchat.app.sanitize import escape_controls
from specchat.engine import models_folder, size_text
from specchat.engine.models import DEFAULT_PRESET, PRESETS, KnownModel, Machine, ModelStore, known_models, recommended
from specchat.engine.models import pull as pull_model

if TYPE_CHECKING:
    from specchat.engine.tools.distill import Distilled

app = typer.Typer(help="List and download models.", rich_markup_mode=None)


@app.command("list")
def list_models(as_json: options.Json = False) -> None:
    """Show the presets and the models on this machine."""
    models, machine = known_models(ModelStore(models_folder())), Machine.now(models_folder())
    best = recommended(models, machine)
    if as_json:
        print(json.dumps(_as_json(models, machine, best), indent=2))
    else:
        _print_tables(models, machine, best)


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="A preset, a hub id or a GGUF file.")] = DEFAULT_PRESET,
    as_json: Annotated[bool, opt("--json", None, "Print each step as one JSON object on a line.")] = False,
) -> None:
    """Download a model and convert it if necessary. An interrupted download is resumed."""
    store = ModelStore(models_folder())
    with pull_progress(sys.stderr, as_json=as_json) as progress:
        folder = pull_model(name, store, progress)
    if not as_json:
        print(f"{escape_controls(name)} is ready in {escape_controls(str(folder))}")


def _as_json(models: Sequence[KnownModel], machine: Machine, best: str) -> dict[str, Any]:
    return {
        "folder": str(models_folder()),
        "default": DEFAULT_PRESET,
        "recommended": best,
        "presets": [
            {
                "name": model.spec,
                "parameters": PRESETS[model.spec].parameters,
                **{name: getattr(model, name) for name in ("download_bytes", "install_bytes", "memory_bytes")},
                "tokens_per_second": model.speed(machine),
                "obstacle": model.obstacle(machine),
                **{name: getattr(model, name) for name in ("draft", "licence", "note")},
                "gated": PRESETS[model.spec].gated,
                "source": PRESETS[model.spec].origin,
                "local": None if model.folder is None else {"folder": str(model.folder), "bytes": model.disk_bytes},
            }
            for model in models
            if model.spec in PRESETS
        ],
        "others": [
            {"name": model.spec, "folder": str(model.folder), "bytes": model.disk_bytes, "source": model.note}
            for model in models
            if model.spec not in PRESETS
        ],
    }


def _print_tables(models: Sequence[KnownModel], machine: Machine, best: str) -> None:
    rows = [("PRESET", "DOWNLOAD", "MEMORY", "TOK/S", "HERE", "DRAFTER", "LICENCE")]
    for model in models:
        if model.spec in PRESETS:
            download = size_text(model.download_bytes) if model.download_bytes else "-"
            here = model.obstacle(machine) or ("-" if model.disk_bytes is None else size_text(model.disk_bytes))
            name = f"{model.spec} *" if model.spec == best else model.spec
            memory, drafter = size_text(model.memory_bytes or 0), model.draft.rpartition("/")[2] or "-"  # no author
            rows.append((name, download, memory, _speed(model, machine), here, drafter, model.licence))
    _print_table(rows)
    if others := [model for model in models if model.spec not in PRESETS]:
        print()
        lines = ((m.spec, size_text(m.disk_bytes or 0), "-" if m.folder is None else _short(m.folder)) for m in others)
        _print_table([("OTHER", "DISK", "WHERE"), *lines])
    free = f"{size_text(machine.memory)} of memory and {size_text(machine.disk)} of disk are free"
    print(f"\n{DEFAULT_PRESET} is the default. * is recommended here, where {free}.")
    print("TOK/S: expected, from the memory bandwidth. HERE: size on this disk; installing needs twice the DOWNLOAD.")


def _speed(model: KnownModel, machine: Machine) -> str:
    speed = model.speed(machine)
    return f"{speed:.0f}" if speed else "-"


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (escape_controls(cell).ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def _short(folder: Path) -> str:
    """The folder with the home folder as ~."""
    return f"~/{folder.relative_to(Path.home())}" if folder.is_relative_to(Path.home()) else str(folder)


_OPTIONS = {
    **options.settings("target"),
    **options.table(
        kind=(str, "eagle|medusa|pass|bigram", "One-layer (default) or Medusa heads, look-ahead embeddings, bigrams."),
        begin=(
            str,
            "HEAD",
            "A finished draft of the same target and kind to start from: its folder, which is not changed, or "
            "smollm2-135m for the head that comes with specchat.",
        ),
        minutes=(float, "M", "Time for text and training, over all calls."),
        prompts=(
            Path,
            "FILE",
            "Prompts for training, one per line; in a .jsonl file the user turns of a conversation per line, as "
            '{"turns": ["Hello", "Tell me more"]}.',
        ),
        text=(
            list[Path],
            "FILE|FOLDER",
            "For --kind bigram, the text to count: plain text, or the replies in chats and traces (.json, .jsonl). For "
            "other kinds, the folder of an earlier distillation whose text is used: alone, or with --prompts in "
            "addition to new text. May be repeated.",
        ),
    ),
    **options.settings("slots", "context", "dtype", "device"),
}


@options.collect(given=_OPTIONS)
def distill(
    given: options.Given,
    out: Annotated[Path, opt("--out", "FOLDER", "Folder of the draft.")],
    chats: Annotated[
        bool,
        opt(
            "--chats",
            None,
            "Learn from the stored chats with this model, with --from; the newest are held out, and acceptance on them "
            "is printed before and after. Their text is deleted from the folder at the end.",
        ),
    ] = False,
    as_json: Annotated[bool, opt("--json", None, "Print each step, and what was reached, as JSON on a line.")] = False,
) -> None:
    """Make a draft for a target, or train a finished one further.

    The same call again continues an interrupted one; more minutes train the draft further.
    """
    from specchat.app.chat.learning import write_chats
    from specchat.app.storage.store import Store
    from specchat.engine.tools.distill import COUNTED, DistillOptions
    from specchat.engine.tools.distill import distill as run

    for name in ("minutes", "prompts") if "text" in given and given.get("kind") == COUNTED else ():
        if name in given:
            raise UsageError(f"--{name} contradicts --text, which is counted as it is: leave one of them out")
    file = out / ".chats.jsonl" if chats else None
    chosen = DistillOptions(models=models_folder(), out=out, chats=file, **{"target": DEFAULT_PRESET, **given})
    try:
        if file is not None:
            with Store(database_file()) as store:
                write_chats(store, chosen.target, file)
        with pull_progress(sys.stderr, as_json=as_json) as progress:
            made = run(chosen, progress)
    except OSError as error:
        raise AppError(f"{out} cannot be written: {error.strerror or error}") from None
    finally:
        if file is not None:
            file.unlink(missing_ok=True)
    if as_json:
        figures = {"before": made.before, "after": made.reached}
        print(json.dumps({each: reached["greedy"].emitted_per_round for each, reached in figures.items() if reached}))
    else:
        _print_draft(made, out)


def _print_draft(made: Distilled, out: Path) -> None:
    noun = made.noun[0].upper() + made.noun[1:]
    before = f" ({made.steps_before:,} of them before)" if made.steps_before else ""
    steps = f"{made.steps:,} steps{before}, " if made.steps else ""
    counts = f"{made.tokens:,} tokens of text, {steps}{made.minutes:g} minutes"
    print(f"{noun} for {escape_controls(made.target)}: {counts}.")
    if made.reached:
        held_out = "the newest chats, which were" if made.before else "prompts,"
        print(f"On {held_out} held out, drafting {made.gamma} tokens a round:\n")
        print(f"{'':22}{'accepted / tested':>18}   tokens per round   by position")
    rows = {f"{name}, before": reached for name, reached in made.before.items()} | dict(made.reached)
    for name, reached in rows.items():
        places = " ".join(f"{100 * rate:3.0f}" for rate in reached.by_position)
        print(f"{name:22}{100 * reached.rate:16.0f} %   {reached.emitted_per_round:16.2f}   {places} %")
    print(f"\nUse it with: specchat --draft {escape_controls(str(out))}")
