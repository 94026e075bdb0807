"""Models that can be chosen: where each is, its size, and whether a draft fits a target. No model is loaded."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from specchat.engine.errors import EngineError
from specchat.engine.models.catalog import PRESETS
from specchat.engine.models.checkpoint import read_json
from specchat.engine.models.disk import folder_bytes
from specchat.engine.models.hub import HUB_ID, cached_snapshot
from specchat.engine.models.resolve import gguf_of
from specchat.engine.models.store import ModelStore
from specchat.engine.models.tokenizer import check_vocabularies
from specchat.engine.progress import ignore_progress


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that can be chosen."""

    spec: str
    """Name for `engine.models.resolve`."""
    folder: Path | None
    """Folder to load it from; None if it must be downloaded or converted first."""
    disk_bytes: int | None
    """Size on this machine's disk; None if it is not there."""
    memory_bytes: int | None
    """Size of the weights as stored, or in bfloat16; None if unknown."""
    draft: str = ""
    """Recommended draft model, a preset."""
    gone: bool = False
    """Whether it is a file or folder that no longer exists."""
    note: str = ""


def known_models(store: ModelStore, used: Iterable[str] = ()) -> list[KnownModel]:
    """Presets, stored models, and models used before, without duplicates."""
    stored = {model.name: model for model in store.models()}
    models = []
    for preset in PRESETS.values():
        local = stored.pop(preset.stored_name, None)
        cached = cached_snapshot(preset.source) if local is None and isinstance(preset.source, str) else None
        folder = local.folder if local else cached
        disk = local.bytes if local else folder_bytes(cached) if cached else None
        models.append(KnownModel(preset.name, folder, disk, preset.memory_bytes, preset.draft or "", note=preset.note))
    models += [
        KnownModel(model.name, model.folder, model.bytes, _weights(model.folder) or model.bytes, note=model.origin)
        for model in stored.values()
    ]
    known = {model.spec for model in models} | {preset.origin for preset in PRESETS.values()}
    models += [_used(spec, store) for spec in dict.fromkeys(used) if spec not in known]
    return models


def vocabulary_misfit(target: Path, draft: Path) -> str:
    """Why a draft does not fit a target, in one sentence; empty if it fits.

    Args:
        target: folder of the model.
        draft: folder of the model.
    """
    if not (draft / "config.json").is_file():
        return ""  # a draft head or tables: checked when loaded
    try:
        from tokenizers import Tokenizer

        ours, theirs = (Tokenizer.from_file(str(folder / "tokenizer.json")) for folder in (target, draft))
        check_vocabularies(ours, theirs, _eos_ids(target), _eos_ids(draft))
    except EngineError as error:
        return str(error)
    except Exception as error:  # the library raises various exceptions for a damaged file
        return f"the tokenizers cannot be compared ({type(error).__name__})"
    return ""


def free_memory() -> int:
    """Bytes of available memory on this machine."""
    import psutil  # the engine alone can do without

    return int(psutil.virtual_memory().available)


def _used(spec: str, store: ModelStore) -> KnownModel:
    """A model that was used before, by hub id, folder or file."""
    path = Path(spec).expanduser()
    if path.is_dir():
        return KnownModel(spec, path, folder_bytes(path), _weights(path))
    if path.is_file():
        size = path.stat().st_size
        try:
            folder = store.find(gguf_of(spec, store, ignore_progress).name)
        except EngineError as error:
            return KnownModel(spec, None, size, None, note=str(error))
        return KnownModel(spec, folder, size, size)
    if HUB_ID.fullmatch(spec) and (cached := cached_snapshot(spec)) is not None:
        return KnownModel(spec, cached, folder_bytes(cached), _weights(cached))
    return KnownModel(spec, None, None, None, gone=not HUB_ID.fullmatch(spec))


def _weights(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _eos_ids(folder: Path) -> set[int]:
    """EOS token ids in the model's configuration files."""
    ids: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        with suppress(EngineError):
            stated = read_json(folder / name).get("eos_token_id")
            ids |= {stated} if isinstance(stated, int) else set(stated or ())
    return ids
