"""Tiny draft models, and tiny models for the quantised kernels."""

from pathlib import Path

import pytest
import torch

from specchat.engine.kernels.library import missing
from specchat.engine.models.formats import packed_folder
from specchat.engine.models.load import LoadedModel
from specchat.engine.models.packed.load import PackedModel, load_packed
from specchat.engine.models.resolve import resolve
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import ignore_progress
from tests.engine.families import write_family
from tests.engine.tiny import tiny_model


def related(noise: float = 0.3, sharpness: float = 25.0, seed: int = 4) -> LoadedModel:
    """The tiny model with weights that are somewhat off: often right, often only in its second choice."""
    draft = tiny_model(sharpness=sharpness)
    random = torch.Generator().manual_seed(seed)
    for weight in draft.model.parameters():
        weight.add_(noise * weight.std() * torch.randn(weight.shape, generator=random))
    return draft


def packed_family(family: str, folder: Path) -> PackedModel:
    """A model of a family, packed to 8 bits."""
    if missing():
        pytest.skip(str(missing()))
    return pack(write_family(family, folder / family), folder)


def pack(model: Path, folder: Path, quantize: str = "q8") -> PackedModel:
    """What a folder of safetensors holds, packed into a store in the other folder."""
    made = packed_folder(resolve(str(model), ModelStore(folder / "store"), ignore_progress), quantize)
    return load_packed(made, ignore_progress)
