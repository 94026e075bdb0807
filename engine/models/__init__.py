"""Models: presets, downloads from the hub and from wheels, GGUF files, checks, loading.

Importing this package imports neither torch nor transformers; `engine.models.load` does.
"""

from specchat.engine.models.catalog import DEFAULT_PRESET, PRESETS, Preset
from specchat.engine.models.known import (
    KnownModel,
    downloads,
    is_installed,
    known_models,
    pull,
    recommended,
    vocabulary_misfit,
)
from specchat.engine.models.machine import Machine
from specchat.engine.models.store import ModelStore, StoredModel
