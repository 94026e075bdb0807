"""A network without its last layers, for drafts of the target by itself."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch

from specchat.engine.errors import EngineError


def first_layers(model: Any, count: int) -> Any:
    """A causal language model of the same modules with fewer layers."""
    whole, name = copy(model), model.base_model_prefix
    base = copy(getattr(model, name))
    layers = getattr(base, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList):
        kind = getattr(model.config, "model_type", type(model).__name__)
        raise EngineError(f"models of type {kind} cannot draft by early exit: choose another drafter")
    # A copied module shares its table of submodules with the original.
    whole._modules, base._modules = dict(model._modules), dict(base._modules)
    base._modules["layers"] = layers[:count]
    whole._modules[name] = base
    return whole
