"""Formats that a model can be loaded in."""

from __future__ import annotations

from collections.abc import Callable

import torch

from specchat.engine.config import EngineConfig
from specchat.engine.models.families import family_of_gguf
from specchat.engine.models.find_packed import packed_folder
from specchat.engine.models.gguf.header import GgufHeader
from specchat.engine.models.load import LoadedModel, pick_dtype, shared, shared_model
from specchat.engine.models.packed.load import Model, PackedModel, load_packed
from specchat.engine.models.resolve import Source

PACKED, CODES, PLAIN = "packed", "codes", "plain"
"""Weights for the CPU's kernels; the network of transformers with linear layers that compute with codes; without."""


def load(source: Source, form: str, config: EngineConfig, device: torch.device, stage: str = "target") -> Model:
    """Load a model in one of `FORMATS`, or return the loaded one while it is in use.

    Args:
        source: of the model (`engine.models.resolve.resolve`).
        form: name of the format.
        config: says how codes are made and in which dtype weights without codes are.
        device: of the weights.
        stage: for progress: target or draft.

    Raises:
        EngineError: the model is not available, damaged, not supported, or does not fit into memory.
    """
    return FORMATS[form](source, config, device, stage)


def _packed(source: Source, config: EngineConfig, _: torch.device, stage: str) -> PackedModel:
    return load_packed(packed_folder(source, config.quantize), source.progress, stage)


def _codes(source: Source, config: EngineConfig, device: torch.device, stage: str) -> LoadedModel:
    from specchat.engine.models.packed.network import Codes, load_quantized_network  # takes long to import

    file = source.file() if config.quantize == "auto" else None
    header = GgufHeader.read(file) if file else None
    folder = source.folder(weights=header is None or not family_of_gguf(header.architecture))

    def load() -> LoadedModel:
        codes = Codes("q8" if config.quantize == "auto" else config.quantize, header, folder)
        return load_quantized_network(folder, codes, device, source.progress, stage)

    return shared((folder.resolve(), str(device), config.quantize), load)


def _plain(source: Source, config: EngineConfig, device: torch.device, stage: str) -> LoadedModel:
    folder = source.folder()
    return shared_model(folder, device, pick_dtype(config.dtype, device, folder), source.progress, stage)


FORMATS: dict[str, Callable[[Source, EngineConfig, torch.device, str], Model]] = {
    PACKED: _packed,
    CODES: _codes,
    PLAIN: _plain,
}
"""Loaders by name."""
