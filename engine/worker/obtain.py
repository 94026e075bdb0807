"""A model as this machine runs it best: quantised on our kernels where they fit, else by its modelling code."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from specchat.engine.backends.encoder_decoder_runner import EncoderDecoderBackend
from specchat.engine.backends.packed import PackedBackend
from specchat.engine.config import EngineConfig
from specchat.engine.decoding.backend import Backend
from specchat.engine.errors import EngineError
from specchat.engine.kernels.library import KernelError, library, missing
from specchat.engine.models.gguf.header import GgufHeader
from specchat.engine.models.load import LoadedModel, pick_dtype, shared, shared_model
from specchat.engine.models.packed.decoder_description import OtherFamilyError
from specchat.engine.models.packed.find import gguf_file, packed_folder
from specchat.engine.models.packed.load import PackedModel, load_packed
from specchat.engine.models.resolve import is_gguf, resolve
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import Progress

Model = LoadedModel | PackedModel


@dataclass(frozen=True, slots=True)
class Obtained:
    """A model that is loaded."""

    model: Model
    notices: tuple[str, ...]
    """Why it does not run as it could, a sentence each."""


def obtain_model(
    spec: str, config: EngineConfig, device: torch.device, progress: Progress, stage: str = "target"
) -> Obtained:
    """Fetch, convert, pack and load what `spec` names.

    Raises:
        EngineError: it is unavailable, or cannot be loaded or run.
    """
    store = ModelStore(config.models)
    reason = None
    if config.dtype == "auto" and _may_be_quantised(spec, config.quantize, store):
        reason = missing()
        if reason is None and device.type == "cuda":
            try:
                return Obtained(_quantized_network(spec, config.quantize, store, device, progress, stage), ())
            except EngineError as error:
                reason = str(error)
        elif reason is None:
            try:
                folder = packed_folder(spec, config.quantize, store, progress)
                if folder is not None:
                    notice = library().notice
                    return Obtained(load_packed(folder, progress, stage), (notice,) if notice else ())
            except (OtherFamilyError, KernelError) as error:
                reason = str(error)
                with suppress(EngineError):
                    network = _quantized_network(spec, config.quantize, store, device, progress, stage)
                    return Obtained(network, (f"{network.name} runs slower than it could: {reason}",))
            except EngineError as error:
                reason = str(error)
    folder = resolve(spec, store, progress)
    dtype = pick_dtype(config.dtype, device, folder)
    model = shared_model(folder, device, dtype, progress, stage)
    slower = f"{model.name} runs in {model.format}, slower than it could: {reason}"
    return Obtained(model, (slower,) if reason else ())


def make_runner(
    model: Model, slots: int, context: int, overhang: int, taps: Sequence[int] = (), *, exact: bool = False
) -> Backend:
    """Backend of a model, with a new cache.

    Raises:
        EngineError: the cache does not fit into memory, or the model cannot be exact.
    """
    if isinstance(model, PackedModel):
        return PackedBackend(model, slots, context, overhang, taps)
    if model.start is not None:
        if exact:
            raise EngineError(f"exact mode is for models that continue text, not for {model.name}: do without it")
        return EncoderDecoderBackend(model.model, slots, context, overhang)
    from specchat.engine.backends.transformers_backend import (
        TransformersBackend,  # with transformers' modelling code: seconds
    )

    return TransformersBackend(model.model, slots, context, overhang, taps, exact=exact)


def _quantized_network(
    spec: str, quantize: str, store: ModelStore, device: torch.device, progress: Progress, stage: str
) -> LoadedModel:
    """The network of transformers with linear layers that compute with codes."""
    from specchat.engine.models.packed.network import Codes, GgufCodes, MadeCodes, load_quantized_network

    folder = resolve(spec, store, progress)

    def load() -> LoadedModel:
        file = gguf_file(spec, store, progress) if quantize == "auto" else None
        codes: Codes = GgufCodes(GgufHeader.read(file)) if file else MadeCodes("q8" if quantize == "auto" else quantize)
        return load_quantized_network(folder, codes, device, progress, stage)

    return shared((folder.resolve(), str(device), quantize), load)


def _may_be_quantised(spec: str, quantize: str, store: ModelStore) -> bool:
    return quantize in ("q8", "q4") or (quantize == "auto" and is_gguf(spec, store))
