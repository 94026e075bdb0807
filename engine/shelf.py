"""Models that are loaded already: engines of one process that run the same model share its weights."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path

import torch

from engine.loading import LoadedModel, load_model
from engine.progress import Progress

_models: weakref.WeakValueDictionary[tuple[Path, str, torch.dtype], LoadedModel] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def shared_model(
    folder: Path, device: torch.device, dtype: torch.dtype, progress: Progress, stage: str = "target"
) -> LoadedModel:
    """As `engine.loading.load_model`, or the same object again while somebody still uses it."""
    key = (folder.resolve(), str(device), dtype)
    with _lock:
        model = _models.get(key)
        if model is None:
            model = _models[key] = load_model(folder, device, dtype, progress, stage)
    return model
