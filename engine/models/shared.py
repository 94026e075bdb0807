"""Cache of loaded models: engines of one process that run the same model share its weights."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from specchat.engine.device.memory import trim_heap
from specchat.engine.models.fingerprint import fingerprint
from specchat.engine.models.load import LoadedModel, load_model
from specchat.engine.models.prepacked_linear import pack
from specchat.engine.progress import Progress

_models: weakref.WeakValueDictionary[tuple[Path, str, str], LoadedModel] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def shared_model(
    folder: Path, device: torch.device, dtype: torch.dtype, progress: Progress, stage: str = "target"
) -> LoadedModel:
    """Load a model with prepacked linear layers, or return the loaded one while it is still in use.

    Arguments and errors as `engine.models.load.load_model`. Thread-safe.
    """

    def load() -> LoadedModel:
        plain = load_model(folder, device, dtype, progress, stage)
        fingerprint(plain.model)  # before packing replaces the weights
        model = replace(plain, weight_bytes=plain.weight_bytes + pack(plain.model))
        trim_heap()
        return model

    return shared((folder.resolve(), str(device), str(dtype)), load)


def shared(key: tuple[Path, str, str], load: Callable[[], LoadedModel]) -> LoadedModel:
    """What `load` gives, or what it gave for the same folder, device and number type while that is in use."""
    with _lock:
        model = _models.get(key)
        if model is None:
            model = _models[key] = load()
    return model
