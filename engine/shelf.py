"""Models that are loaded already: engines of one process that run the same model share its weights."""

from __future__ import annotations

import threading
import weakref
from dataclasses import replace
from pathlib import Path

import torch

from engine.footprint import give_back
from engine.head.fingerprint import fingerprint
from engine.loading import LoadedModel, load_model
from engine.packed import pack
from engine.progress import Progress

_models: weakref.WeakValueDictionary[tuple[Path, str, torch.dtype], LoadedModel] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def shared_model(
    folder: Path, device: torch.device, dtype: torch.dtype, progress: Progress, stage: str = "target"
) -> LoadedModel:
    """As `engine.loading.load_model`, ready to run, or the same object again while somebody still uses it."""
    key = (folder.resolve(), str(device), dtype)
    with _lock:
        model = _models.get(key)
        if model is None:
            plain = load_model(folder, device, dtype, progress, stage)
            fingerprint(plain.model)  # it is of the weights as they were
            model = replace(plain, weight_bytes=plain.weight_bytes + pack(plain.model))
            give_back()
            _models[key] = model
    return model
