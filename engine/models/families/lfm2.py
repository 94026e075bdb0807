"""LFM2: short convolutions between layers of attention; LFM2 MoE has mixtures of experts after its first layers."""

from __future__ import annotations

from typing import Any

from specchat.engine.models.family import Family, Settings, experts, has_tensor
from specchat.engine.models.gguf.header import GgufHeader


def _common(header: GgufHeader) -> Settings:
    convolutions = has_tensor(header, "shortconv.conv.weight")
    return {
        "norm_eps": header.setting("attention.layer_norm_rms_epsilon"),
        "layer_types": ["conv" if each else "full_attention" for each in convolutions],
        "conv_L_cache": header.setting("shortconv.l_cache"),
        "conv_bias": any(has_tensor(header, "shortconv.conv.bias")),
    }


def _dense(header: GgufHeader) -> Settings:
    return _common(header) | {"block_auto_adjust_ff_dim": False}


def _mixture(header: GgufHeader) -> Settings:
    dense, bias = header.setting("leading_dense_block_count"), any(has_tensor(header, "exp_probs_b.bias"))
    return _common(header) | experts(header) | {"num_dense_layers": dense, "use_expert_bias": bias}


def _shape(config: Any, network: Any) -> Settings:
    inner = network.layers[0].feed_forward.w1.out_features
    return {"epsilon": config.norm_eps, "taps": config.conv_L_cache, "intermediate": inner}


def _mixture_shape(config: Any, _: Any) -> Settings:
    return {"epsilon": config.norm_eps, "taps": config.conv_L_cache, "sigmoid_experts": True}


_NAMES = {
    "model.norm": "model.embedding_norm",
    "self_attn.o_proj": "self_attn.out_proj",
    "self_attn.q_norm": "self_attn.q_layernorm",
    "self_attn.k_norm": "self_attn.k_layernorm",
    "mlp.experts.": "feed_forward.experts.",
    "mlp.expert_bias": "feed_forward.expert_bias",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.gate": "feed_forward.gate",
    "input_layernorm": "operator_norm",
    "post_attention_layernorm": "ffn_norm",
}
_BOTH: dict[str, Any] = {"names": _NAMES, "head_norms": True}
FAMILIES = (
    Family(types=("lfm2",), architecture="lfm2", settings=_dense, shape=_shape, **_BOTH),
    Family(types=("lfm2_moe",), architecture="lfm2moe", settings=_mixture, shape=_mixture_shape, **_BOTH, mixture=True),
)
