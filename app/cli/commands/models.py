"""`specchat models`: lists presets and stored models, and downloads models."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from specchat.app.cli import options
from specchat.app.cli.options import opt
from specchat.app.cli.progress import pull_progress
from specchat.app.sanitize import escape_controls
from specchat.engine import Progress, models_folder, size_text
from specchat.engine.models import (
    DEFAULT_PRESET,
    PRESETS,
    ModelStore,
    Preset,
    StoredModel,
    cached_snapshot,
    folder_bytes,
    prepare_model,
)

app = typer.Typer(help="List and download models.", rich_markup_mode=None)
Listed = tuple[Preset, StoredModel | None]
"""A preset, and its model on this machine, if any."""
_FIELDS = ("name", "parameters", "memory_bytes", "draft", "licence", "note")
"""Fields of a preset in the JSON object."""


@app.command("list")
def list_models(as_json: options.Json = False) -> None:
    """Show the presets and the models on this machine."""
    stored = {model.name: model for model in ModelStore(models_folder()).models()}
    presets = [(preset, stored.pop(preset.stored_name, None) or _in_hub_cache(preset)) for preset in PRESETS.values()]
    if as_json:
        print(json.dumps(_as_json(presets, list(stored.values())), indent=2))
    else:
        _print_tables(presets, list(stored.values()))


@app.command()
def pull(
    name: Annotated[
        str, typer.Argument(help="A preset, a hub id (organisation/name), or a GGUF file.")
    ] = DEFAULT_PRESET,
    as_json: Annotated[bool, opt("--json", None, "Print each step as one JSON object on a line.")] = False,
) -> None:
    """Download a model and convert it if necessary. An interrupted download is resumed."""
    watched: AbstractContextManager[Progress] = nullcontext(_json_line) if as_json else pull_progress(sys.stderr)
    with watched as progress:
        folder = prepare_model(name, ModelStore(models_folder()), progress)
    if not as_json:
        print(f"{escape_controls(name)} is ready in {escape_controls(str(folder))}")


def _json_line(stage: str, text: str, fraction: float | None) -> None:
    print(json.dumps({"stage": stage, "text": text, "fraction": fraction}), flush=True)


def _in_hub_cache(preset: Preset) -> StoredModel | None:
    """The preset in the hub library's cache, from which the engine can load it."""
    if not isinstance(preset.source, str):
        return None
    folder = cached_snapshot(preset.source)
    return None if folder is None else StoredModel(preset.stored_name, folder, folder_bytes(folder), preset.source)


def _as_json(presets: Sequence[Listed], others: Sequence[StoredModel]) -> dict[str, Any]:
    return {
        "folder": str(models_folder()),
        "default": DEFAULT_PRESET,
        "presets": [
            {
                **{name: getattr(preset, name) for name in _FIELDS},
                "source": preset.origin,
                "local": None if local is None else {"folder": str(local.folder), "bytes": local.bytes},
            }
            for preset, local in presets
        ],
        "others": [
            {"name": model.name, "folder": str(model.folder), "bytes": model.bytes, "source": model.origin}
            for model in others
        ],
    }


def _print_tables(presets: Sequence[Listed], others: Sequence[StoredModel]) -> None:
    rows = [("PRESET", "MEMORY", "DRAFT", "DISK", "WHERE")]
    for preset, local in presets:
        disk = "-" if local is None else size_text(local.bytes)
        where = preset.origin if local is None else _short(local.folder)
        rows.append((preset.name, size_text(preset.memory_bytes), preset.draft or "-", disk, where))
    _print_table(rows)
    if others:
        print()
        _print_table([("OTHER", "DISK", "WHERE"), *((m.name, size_text(m.bytes), _short(m.folder)) for m in others)])
    print()
    print(
        f"{DEFAULT_PRESET} is the default. MEMORY: the weights in bfloat16. DRAFT: the preset that drafts well for it."
    )
    print("DISK - is not on this machine yet: specchat models pull PRESET")


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (escape_controls(cell).ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def _short(folder: Path) -> str:
    """The folder with the home folder as ~."""
    return f"~/{folder.relative_to(Path.home())}" if folder.is_relative_to(Path.home()) else str(folder)
