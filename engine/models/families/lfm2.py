"""LFM2: short convolutions between layers of attention."""

from __future__ import annotations

from typing import Any

from specchat.engine.models.family import Family, Settings, has_tensor
from specchat.engine.models.gguf.header import GgufHeader


def _settings(header: GgufHeader) -> Settings:
    convolutions = has_tensor(header, "shortconv.conv.weight")
    return {
        "norm_eps": header.setting("attention.layer_norm_rms_epsilon"),
        "layer_types": ["conv" if each else "full_attention" for each in convolutions],
        "conv_L_cache": header.setting("shortconv.l_cache"),
        "conv_bias": any(has_tensor(header, "shortconv.conv.bias")),
        "block_auto_adjust_ff_dim": False,
    }


def _shape(config: Any, network: Any) -> Settings:
    inner = network.layers[0].feed_forward.w1.out_features
    return {"epsilon": config.norm_eps, "taps": config.conv_L_cache, "intermediate": inner}


FAMILIES = (
    Family(
        types=("lfm2",),
        architecture="lfm2",
        settings=_settings,
        shape=_shape,
        names={
            "model.norm": "model.embedding_norm",
            "self_attn.o_proj": "self_attn.out_proj",
            "self_attn.q_norm": "self_attn.q_layernorm",
            "self_attn.k_norm": "self_attn.k_layernorm",
            "mlp.gate_proj": "feed_forward.w1",
            "mlp.up_proj": "feed_forward.w3",
            "mlp.down_proj": "feed_forward.w2",
            "input_layernorm": "operator_norm",
            "post_attention_layernorm": "ffn_norm",
        },
        head_norms=True,
    ),
)
