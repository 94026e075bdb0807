"""Fingerprint of a network from its weights where they are stored, without loading it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.models.family import Order
from specchat.engine.models.load import fingerprint_of, sampled
from specchat.engine.models.packed.decoder_description import empty_network
from specchat.engine.models.packed.experts import is_experts, matrices_of, parts_of, places_in_matrices
from specchat.engine.models.packed.names import EMBEDDING, OUTPUT

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def source_fingerprint(source: Any, config: PreTrainedConfig) -> str:
    """Fingerprint of the network with these weights, as `engine.models.load.fingerprint` computes it.

    Args:
        source: of the weights, with `family`, `has` and `sample` of `engine.models.packed.source.WeightSource`.
        config: of the model.
    """
    found = []
    for name, weight in empty_network(config).state_dict().items():
        stored = EMBEDDING if name == OUTPUT and not source.has(OUTPUT) else name
        places = np.arange(*sampled(weight.numel()).indices(weight.numel()))
        cuts = {} if source.has(name) else parts_of(source.family.parts(config), name)
        if is_experts(name) and not source.has(name):
            values = _sample_experts(source, name, weight.shape, places)
        elif cuts:
            values = _sample_parts(source, cuts, weight.shape[-1], places)
        else:
            values = source.sample(stored, places)
        found.append((name, tuple(weight.shape), values))
    return fingerprint_of(found)


def _sample_parts(source: Any, parts: Mapping[str, Order], columns: int, places: NDArray[np.int64]) -> Tensor:
    """Entries of a weight that a file has as several, by flat index."""
    starts = dict(zip(parts, np.cumsum([0, *map(len, parts.values())]), strict=False))
    order = np.argsort(np.concatenate([*parts.values()]))
    row, column = np.divmod(places, columns)
    values = torch.empty(len(places))
    for name, rows in parts.items():
        within = order[row] - starts[name]
        own = (within >= 0) & (within < len(rows))
        values[torch.from_numpy(own)] = source.sample(name, within[own] * columns + column[own]).float()
    return values


def _sample_experts(source: Any, name: str, shape: torch.Size, places: NDArray[np.int64]) -> Tensor:
    """Entries of a parameter with the experts of a layer, by flat index."""
    matrices = matrices_of(name)
    part, within = places_in_matrices(shape, len(matrices), places, in_turn=source.family.experts_in_turn)
    found = [source.sample(each, within) for each in matrices]
    return torch.stack(found)[torch.from_numpy(part), torch.arange(len(places))]
