"""Rotary embeddings of published heads, from the settings of a config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from specchat.engine.drafters.published.weights import UnfitError, require
from specchat.engine.errors import first_line

_SETTINGS = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor")
_TYPES = ("sliding_attention", "full_attention")
"""Types of layers that settings may be stated for, as in the target; speculators trains all layers with the first."""
_KINDS = ("default", "linear", "llama3", "proportional", "yarn")
"""Rotary embeddings that do not depend on the length of the text."""


def rotary_frequencies(layer: Mapping[str, Any], hidden: int, heads: int, size: int) -> tuple[Tensor, float]:
    """Inverse frequencies [R / 2] of rotary embeddings, which turn R dimensions of a head, and the factor of cosine and
    sine.

    Args:
        layer: settings of the network in config.json.
        hidden: d.
        heads: query heads.
        size: of a head.

    Raises:
        UnfitError: the rotary settings are unknown, or cannot be read.
    """
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    sizes: dict[str, Any] = {"hidden_size": hidden, "num_attention_heads": heads, "head_dim": size}
    sizes["max_position_embeddings"] = int(layer.get("max_position_embeddings", 2048))
    settings = {key: layer[key] for key in _SETTINGS if layer.get(key)}
    by_type = settings.get("rope_parameters", {})
    if one := next((by_type[kind] for kind in _TYPES if kind in by_type), None):
        settings["rope_parameters"] = one
    try:
        config = LlamaConfig(**sizes, **settings)
        stated: Any = config.rope_parameters
        kind = stated["rope_type"]
        require(kind in _KINDS, f"has rotary embeddings of the type {kind!r}, which are not supported")
        if kind != "default":
            make: Callable[[Any], tuple[Tensor, float]] = ROPE_INIT_FUNCTIONS[kind]
            return make(config)
        turned = int(size * stated.get("partial_rotary_factor", 1.0))
        return stated["rope_theta"] ** -(torch.arange(0, turned, 2).float() / turned), 1.0
    except (KeyError, TypeError, ValueError) as error:
        raise UnfitError(
            f"has a config.json with rotary settings that cannot be read ({first_line(error)}): fetch it again",
        ) from None
