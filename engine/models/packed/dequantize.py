"""The network of transformers with the weights of a packed model in float32: what quantised passes are checked by."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from specchat.engine.kernels.packed_matrix import unpack
from specchat.engine.models.load import LoadedModel, load_model
from specchat.engine.models.packed.load import PackedModel
from specchat.engine.models.packed.names import EMBEDDING, FUSED, OUTPUT
from specchat.engine.progress import Progress


def load_dequantized(packed: PackedModel, folder: Path, progress: Progress) -> LoadedModel:
    """The float32 network of a packed model.

    Args:
        packed: whose weights it gets.
        folder: of the model it was made from, for the configuration.
        progress: told of the loading.

    Raises:
        EngineError: it does not fit into memory, or the folder is damaged.
    """
    loaded = load_model(folder, torch.device("cpu"), torch.float32, progress)
    state = {name: _weight(packed, name) for name in loaded.model.state_dict()}
    loaded.model.load_state_dict(state, assign=True)
    loaded.model.tie_weights()
    loaded.model.requires_grad_(requires_grad=False)
    return loaded


def _weight(packed: PackedModel, name: str) -> Tensor:
    """One entry of the network's state."""
    if name == OUTPUT and packed.described.tied:
        name = EMBEDDING
    part = name.split(".")[-2]
    if part in FUSED:
        return torch.cat([_weight(packed, name.replace(part, each)) for each in FUSED[part]])
    if name in packed.weights.about["matrices"]:
        return torch.from_numpy(unpack(packed.weights.matrix(name)))
    values = torch.from_numpy(packed.weights.vector(name).copy())
    return values - packed.described.norm_offset if name.endswith("norm.weight") else values
