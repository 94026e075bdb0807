"""What a model name needs on this machine: the size of its download, and the download itself."""

from __future__ import annotations

from pathlib import Path

from specchat.engine.models.catalog import PRESETS, hub_folder
from specchat.engine.models.hub import HUB_ID, cached_snapshot, download_bytes
from specchat.engine.models.known import known_models
from specchat.engine.models.machine import has_gpu
from specchat.engine.models.resolve import resolve
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import Progress


def missing_bytes(spec: str, store: ModelStore) -> int:
    """Bytes to download before `spec` can be loaded; 0 if it is on this machine or not of the hub.

    Raises:
        EngineError: the hub does not answer, or has no such model.
    """
    if spec in PRESETS:
        model = next(model for model in known_models(store) if model.spec == spec)
        return (model.memory_bytes or 0) if model.disk_bytes is None else 0
    here = Path(spec).expanduser().exists() or store.find(hub_folder(spec)) or not HUB_ID.fullmatch(spec)
    return 0 if here or cached_snapshot(spec) else download_bytes(spec)


def pull(spec: str, store: ModelStore, progress: Progress) -> Path:
    """Download what a load with default settings uses; returns its folder. Arguments and errors as for `resolve`."""
    if spec in PRESETS and PRESETS[spec].file and not has_gpu():
        from specchat.engine.models.packed.find import packed_folder  # imports torch

        folder = packed_folder(spec, "auto", store, progress)
        assert folder is not None
        return folder
    return resolve(spec, store, progress)
