"""Formats that a model can be loaded in, and packed folders, which are built first if needed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from specchat.engine.config import EngineConfig
from specchat.engine.device.device import require_memory
from specchat.engine.files import replacing
from specchat.engine.models.catalog import PRESETS
from specchat.engine.models.checkpoint import display_name
from specchat.engine.models.disk import disk_errors
from specchat.engine.models.families import family_of_gguf
from specchat.engine.models.gguf.header import GgufHeader
from specchat.engine.models.load import LoadedModel, pick_dtype, shared, shared_model
from specchat.engine.models.packed.file import PackedFileError, read_index
from specchat.engine.models.packed.load import Model, load_packed
from specchat.engine.models.resolve import GgufFile, Source, empty_folder
from specchat.engine.models.store import storable
from specchat.engine.models.tokenizer import TEMPLATE

PACKED, CODES, PLAIN = "packed", "codes", "plain"
"""Weights for the CPU's kernels; the network of transformers with linear layers that compute with codes; without."""


def load(source: Source, form: str, config: EngineConfig, device: torch.device, stage: str = "target") -> Model:
    """Load a model in one of these formats, or return the loaded one while it is in use.

    Args:
        source: of the model (`engine.models.resolve.resolve`).
        form: name of the format.
        config: says how codes are made and in which dtype weights without codes are.
        device: of the weights.
        stage: for progress: target or draft.

    Raises:
        EngineError: the model is not available, damaged, not supported, or does not fit into memory.
    """
    if form == PACKED:
        return load_packed(packed_folder(source, config.quantize), source.progress, stage)
    if form == PLAIN:
        folder = source.folder()
        return shared_model(folder, device, pick_dtype(config.dtype, device, folder), source.progress, stage)
    file = source.file() if config.quantize == "auto" else None
    header = GgufHeader.read(file) if file else None
    folder = source.folder(weights=header is None or not family_of_gguf(header.architecture))

    def load() -> LoadedModel:
        from specchat.engine.models.packed.network import Codes, load_quantized_network  # takes long to import

        codes = Codes("q8" if config.quantize == "auto" else config.quantize, header, folder)
        return load_quantized_network(folder, codes, device, source.progress, stage)

    return shared((folder.resolve(), str(device), config.quantize), load)


def packed_folder(source: Source, quantize: str) -> Path:
    """The packed folder of a model; downloads, converts and packs it first if needed.

    Args:
        source: of the model.
        quantize: auto keeps the codes of a GGUF file and quantises others to 8 bits; q8 or q4 quantise any model.

    Raises:
        EngineError: the model is not available, or cannot be packed.
    """
    store = source.store.packed
    if quantize == "auto":
        if source.spec in PRESETS:
            memory = PRESETS[source.spec].memory_bytes(gpu=False)
            require_memory(torch.device("cpu"), memory, f"running {source.spec}")
        if (gguf := source.gguf()) is not None:
            return _from_gguf(gguf, source)
        if (packed := store.find(f"{source.spec}.gguf")) is not None:
            return packed  # the file that it was packed from is gone
        quantize = "q8"
    model = source.folder()
    identity = f"{quantize} {_folder_identity(model)}"
    name = model.name if model.parent == source.store.folder else f"{storable(display_name(model))}-{_short(identity)}"

    def build(_: Path, folder: Path) -> None:
        from specchat.engine.models.packed.build import pack_checkpoint  # takes long to import

        pack_checkpoint(model, quantize, folder, identity, source.progress)

    packed = _packed(f"{name}.{quantize}", identity, source, build)
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


def _from_gguf(gguf: GgufFile, source: Source) -> Path:
    def build(work: Path, folder: Path) -> None:
        from specchat.engine.models.packed.build import pack_gguf

        file = gguf.file(work)
        model = source.converted(replace(gguf, file=lambda _: file), weights=False)
        pack_gguf(file, model, folder, gguf.digest, source.progress)

    name = f"{gguf.name}.gguf"
    folder = _packed(name, gguf.digest, source, build)
    if gguf.is_outdated(read_index(folder).get("tokenizer")):
        from specchat.engine.models.packed.build import renew_tokenizer

        with source.store.packed.building(name, source.progress):
            renew_tokenizer(source.converted(gguf, weights=False), folder)
    return folder


def _packed(name: str, identity: str, source: Source, pack: Callable[[Path, Path], None]) -> Path:
    """A packed model. If it is damaged, or of another version or source, it is built again.

    Args:
        name: in the store of packed models.
        identity: of what it is packed from.
        source: of the model.
        pack: packs the model; is called with the work folder and the empty folder of the model.
    """

    def build(work: Path) -> None:
        pack(work, empty_folder(work / "model", f"packing {name}"))

    def is_valid(folder: Path) -> bool:
        try:
            return bool(read_index(folder).get("source") == identity)
        except PackedFileError:
            return False

    return source.store.packed.find_or_build(name, identity, build, source.progress, is_valid)


def _folder_identity(model: Path) -> str:
    """Digest that changes with any weight file or configuration of a folder."""
    files = sorted(file for file in model.iterdir() if file.suffix in (".safetensors", ".json"))
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return _short(json.dumps([str(model.resolve()), stats]))


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
