"""`specchat models`: lists presets and stored models, and downloads models."""

import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from specchat.app.cli import options
from specchat.app.cli.options import opt
from specchat.app.cli.progress import pull_progress
from specchat.engine import models_folder, size_text
from specchat.engine.models import DEFAULT_PRESET, PRESETS, KnownModel, Machine, ModelStore, known_models, recommended
from specchat.engine.models import pull as pull_model

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
    with pull_progress(as_json=as_json) as progress:
        folder = pull_model(name, store, progress)
    if not as_json:
        print(f"{name} is ready in {folder}")


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
                **{name: getattr(model, name) for name in ("draft", "tau", "licence", "note")},
                "tau_source": PRESETS[model.spec].tau_source if model.draft else "",
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
    rows = [("PRESET", "DOWNLOAD", "MEMORY", "TOK/S", "HERE", "DRAFTER", "τ", "LICENCE")]
    for model in models:
        if model.spec in PRESETS:
            download = size_text(model.download_bytes) if model.download_bytes else "-"
            here = model.obstacle(machine) or ("-" if model.disk_bytes is None else size_text(model.disk_bytes))
            name = f"{model.spec} *" if model.spec == best else model.spec
            memory = size_text(model.memory_bytes or 0)
            drafter = model.draft.rpartition("-")[2] or "-"  # its kind, after the name of the model
            tau = f"{model.tau:.1f}" if model.draft else "-"
            rate = model.speed(machine)
            speed = "-" if rate is None else f"{rate:.0f}" if rate >= 1 else "<1"
            rows.append((name, download, memory, speed, here, drafter, tau, model.licence))
    _print_table(rows)
    if others := [model for model in models if model.spec not in PRESETS]:
        print()
        lines = ((m.spec, size_text(m.disk_bytes or 0), "-" if m.folder is None else _short(m.folder)) for m in others)
        _print_table([("OTHER", "DISK", "WHERE"), *lines])
    free = f"{size_text(machine.memory)} of memory and {size_text(machine.disk)} of disk are free"
    print()
    for line in (
        f"{DEFAULT_PRESET} is the default. * is recommended here, where {free}.",
        "TOK/S: expected, from the memory bandwidth. HERE: size on this disk; installing needs twice the DOWNLOAD.",
        "τ: tokens per round with the drafter, as published (--json states by whom).",
    ):
        print(textwrap.fill(line, _columns()))


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table; without its last column, and with less space between the others, where the terminal is too narrow.

    Args:
        rows: of the table, the headings first.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    room = _columns()
    if sum(widths) + 2 * len(widths) - 2 > room:
        widths.pop()
    gap = "  " if sum(widths) + 2 * len(widths) - 2 <= room else " "
    for row in rows:
        print(gap.join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip())


def _columns() -> int:
    """Width of the terminal; no limit for a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def _short(folder: Path) -> str:
    """The folder with the home folder as ~."""
    return f"~/{folder.relative_to(Path.home())}" if folder.is_relative_to(Path.home()) else str(folder)
