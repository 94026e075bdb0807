"""What a start with default settings loads, prepared before it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from specchat.engine.models.resolve import is_gguf, resolve
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import Progress


def prepare(spec: str, store: ModelStore, progress: Progress) -> Path:
    """Fetch a model and convert or pack it; returns a folder of it. Arguments and errors as for `resolve`."""
    if not is_gguf(spec, store):
        return resolve(spec, store, progress)
    import torch

    from specchat.engine.kernels.library import KernelError, missing
    from specchat.engine.models.packed.decoder_description import OtherFamilyError
    from specchat.engine.models.packed.find import gguf_file, packed_folder

    if missing() is not None:
        return resolve(spec, store, progress)
    if not torch.cuda.is_available():
        with suppress(OtherFamilyError, KernelError):
            packed_folder(spec, "auto", store, progress)
            return resolve(spec, store, progress, weights=False)
    gguf_file(spec, store, progress)
    return resolve(spec, store, progress, weights=False)
