"""Search for the published head that `--draft` names: a folder, or a repository on the hub."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from specchat.engine.errors import check
from specchat.engine.files import local_path
from specchat.engine.models.catalog import PRESETS, hub_folder
from specchat.engine.models.checkpoint import INDEX, read_json, weight_files
from specchat.engine.models.gguf.header import GgufHeader
from specchat.engine.models.hub import HUB_ID, SHARD, cached_snapshot, drafter_file, fetch_from_hub, hub_file, hub_files
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import Progress
from specchat.engine.registry import BLOCK, MTP_LAYER, PUBLISHED, PartKind

CONFIG = "config.json"
WEIGHTS = ("model.safetensors", INDEX, "medusa_lm_head.safetensors", "pytorch_model.bin", "medusa_lm_head.pt")
"""File names of weights, or of the list of their files, in order of preference."""
MEDUSA, NESTED, SPECULATORS = "medusa_num_heads", "dflash_config", "speculators_model_type"
BLOCK_KINDS = ("dflash", "dflash2", "dspark")
"""Kinds of speculators that are block drafters."""
GGUF, GGUF_BLOCKS = ".gguf", ("dflash", "dspark")
"""llama.cpp's architectures of block drafters."""
_OF_DRAFTERS = {"fc.weight", "nextn.pre_projection.weight"}
"""Tensors of other drafters in GGUF files, which no model has: EAGLE-3, Gemma 4's assistant."""
_MARKS = (SPECULATORS, "draft_vocab_size", "backbone_hidden_size", MEDUSA)
"""Keys of config.json that only heads have."""
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")


def kind_of(found: Path) -> PartKind:
    """The kind of draft that a found file or folder holds."""
    if found.suffix == GGUF:
        return MTP_LAYER if GgufHeader.read(found).is_mtp_alone else BLOCK
    return BLOCK if _states_block(read_json(found / CONFIG)) else PUBLISHED


def _is_drafter_file(file: Path) -> bool:
    """Whether a GGUF file is a drafter; one of an unknown architecture is refused by its name."""
    header = GgufHeader.read(file)
    return header.architecture in GGUF_BLOCKS or bool(_OF_DRAFTERS & header.tensors.keys()) or header.is_mtp_alone


def _states_block(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a block drafter."""
    names = map(str, config.get("architectures") or ())
    named = any(kind in name for name in names for kind in ("DFlash", "DSpark", "MuseGlimmerAssistant"))
    return named or NESTED in config or config.get(SPECULATORS) in BLOCK_KINDS


def find_published(spec: str, store: ModelStore, progress: Progress) -> Path | None:
    """Folder of the published head that `spec` names, fetched if need be; None if it names something else.

    Args:
        spec: a folder, the name of a stored head, or a hub id (organisation/name); or the GGUF file of a drafter,
            which is returned.
        store: where heads of the hub are kept, among the models.
        progress: called with the stage fetch.

    Raises:
        EngineError: it cannot be fetched.
    """
    path = local_path(spec)
    if spec in PRESETS or not spec.strip():
        return None
    if path and path.suffix == GGUF and path.is_file():
        return path if _is_drafter_file(path) else None
    folder = store.find(spec) or (path if path and path.is_dir() else None)
    if folder is None:
        if path or not HUB_ID.fullmatch(spec):
            return None
        folder = store.find(hub_folder(spec))
    if folder is not None:
        return _published_in(folder)
    return None if cached_snapshot(spec) else _from_hub(spec, store, progress)


def weights_of(folder: Path) -> list[Path]:
    """The files with the weights; empty without any.

    Raises:
        EngineError: one of several is missing.
    """
    name = next((name for name in WEIGHTS if (folder / name).is_file()), None)
    if name == INDEX:
        return weight_files(folder)
    return [folder / name] if name else []


def _published_in(folder: Path) -> Path | None:
    """The head that a folder holds, known by its configuration or since it is no complete model, or its only GGUF file.

    Raises:
        EngineError: one of several files of weights is missing.
    """
    if (folder / CONFIG).is_file() and weights_of(folder):
        names = [file.name for file in folder.iterdir()]
        return folder if _holds_head(read_json(folder / CONFIG), names) else None
    files = list(folder.glob(f"*{GGUF}"))
    return files[0] if len(files) == 1 and _is_drafter_file(files[0]) else None


def _holds_head(config: dict[str, Any], files: Collection[str]) -> bool:
    """Whether a folder with this config.json and these files is a head; EAGLE-1 is known by its missing tokenizer."""
    named = any("Eagle" in str(each) for each in config.get("architectures") or ())
    marked = _states_block(config) or any(mark in config for mark in _MARKS)
    return named or marked or not any(name in files for name in _TOKENIZERS)


def _from_hub(hub_id: str, store: ModelStore, progress: Progress) -> Path | None:
    progress("fetch", f"Looking up {hub_id} on the hub", None)
    files = hub_files(hub_id)
    if file := drafter_file(hub_id, files):
        wanted = [file]
    else:
        weights = next((name for name in WEIGHTS if name in files), None)
        if CONFIG not in files or weights is None or not _holds_head(read_json(hub_file(hub_id, CONFIG)), files):
            return None
        wanted = [CONFIG, weights, *(name for name in files if weights == INDEX and SHARD.fullmatch(name))]
    name = hub_folder(hub_id)
    with store.building(name, progress) as work:
        if (ready := store.find(name)) is None:
            fetched = work / "model"
            fetch_from_hub(hub_id, fetched, progress, lambda *_: wanted)
            if file:
                kind = GgufHeader.read(fetched / file).architecture
                check(kind in GGUF_BLOCKS, f"{file} of {hub_id} is no block drafter, but of the architecture {kind}")
                # Complete folders of the store have one.
                (fetched / CONFIG).write_text(json.dumps({"architectures": [kind]}), encoding="utf-8")
            ready = store.complete(name, fetched, hub_id)
    return _published_in(ready)
