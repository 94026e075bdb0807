"""Models: presets, downloads from the hub and from wheels, GGUF files, checks, loading.

Importing this package imports neither torch nor transformers; `engine.models.load` does.
"""

from specchat.engine.models.catalog import DEFAULT_PRESET, PRESETS, Preset
from specchat.engine.models.disk import folder_bytes
from specchat.engine.models.hub import cached_snapshot
from specchat.engine.models.known import KnownModel, free_memory, known_models, vocabulary_misfit
from specchat.engine.models.prepare import prepare as prepare_model
from specchat.engine.models.store import ModelStore, StoredModel

__all__ = [
    "DEFAULT_PRESET",
    "PRESETS",
    "KnownModel",
    "ModelStore",
    "Preset",
    "StoredModel",
    "cached_snapshot",
    "folder_bytes",
    "free_memory",
    "known_models",
    "prepare_model",
    "vocabulary_misfit",
]
