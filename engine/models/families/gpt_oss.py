"""gpt-oss: mixtures of experts with sinks of attention."""

from __future__ import annotations

from typing import Any

from specchat.engine.models.family import Family, Settings, head_size, layer_types
from specchat.engine.models.gguf.header import GgufHeader
from specchat.engine.models.gguf.rope import rope_parameters

_CLAMPED_SWISH = (1.702, 7.0)
"""Gain of the sigmoid and limit of gate and up projection, which the kernels have as constants."""


def _settings(header: GgufHeader) -> Settings:
    rope = rope_parameters(header)
    return {
        "head_dim": head_size(header),
        "num_local_experts": header.setting("expert_count"),
        "num_experts_per_tok": header.setting("expert_used_count"),
        "intermediate_size": header.setting("expert_feed_forward_length"),
        "sliding_window": header.setting("attention.sliding_window"),
        "layer_types": layer_types(header, 2),
        "rope_parameters": rope | ({"truncate": False} if rope["rope_type"] == "yarn" else {}),
    }


def _activation(config: Any) -> str:
    if (config.swiglu_alpha, config.swiglu_limit) == _CLAMPED_SWISH:
        return "clamped_swish"
    return f"a SwiGLU of gain {config.swiglu_alpha} and limit {config.swiglu_limit}"


FAMILIES = (
    Family(
        types=("gpt_oss",),
        architecture="gpt-oss",
        settings=_settings,
        mixture=True,
        activation=_activation,
        names={"mlp.gate": "mlp.router"},
        experts_in_turn=True,
    ),
)
