"""Nemotron-H and Nemotron 3: each layer is a state space model (Mamba-2), attention, an MLP or a mixture of experts."""

from __future__ import annotations

from typing import Any

from specchat.engine.models.families.llama import adjacent_pairs
from specchat.engine.models.family import Family, Settings, has_tensor
from specchat.engine.models.gguf.header import GgufHeader

_PARTS = {"ssm_a": "linear_attention", "attn_q.weight": "full_attention", "ffn_gate_inp.weight": "moe"}
"""A tensor that every layer of a kind has; the others are MLPs."""


def _settings(header: GgufHeader) -> Settings:
    found = list(zip(*(has_tensor(header, tensor) for tensor in _PARTS), strict=True))
    inner, heads = header.setting("ssm.inner_size"), header.setting("ssm.time_step_rank")
    sizes: Any = header.setting("feed_forward_length")
    return {
        "layers_block_type": [
            next((k for k, has in zip(_PARTS.values(), each, strict=True) if has), "mlp") for each in found
        ],
        "intermediate_size": max(sizes) if isinstance(sizes, list) else sizes,
        "layer_norm_epsilon": header.setting("attention.layer_norm_rms_epsilon"),
        "mamba_num_heads": heads,
        "mamba_head_dim": inner // heads,
        "n_groups": header.setting("ssm.group_count"),
        "ssm_state_size": header.setting("ssm.state_size"),
        "conv_kernel": header.setting("ssm.conv_kernel"),
        "use_conv_bias": any(has_tensor(header, "ssm_conv1d.bias")),
    }


def _mixture(header: GgufHeader) -> Settings:
    return _settings(header) | {
        "n_routed_experts": header.setting("expert_count"),
        "n_shared_experts": header.setting("expert_shared_count", 1),
        "num_experts_per_tok": header.setting("expert_used_count"),
        "moe_intermediate_size": header.setting("expert_feed_forward_length"),
        "moe_shared_expert_intermediate_size": header.setting("expert_shared_feed_forward_length"),
        "moe_latent_size": header.setting("moe_latent_size", None),
        "norm_topk_prob": header.setting("expert_weights_norm", True),
        "routed_scaling_factor": header.setting("expert_weights_scale", 1.0),
        "n_group": header.setting("expert_group_count", 1),
        "topk_group": header.setting("expert_group_used_count", 1),
        "num_nextn_predict_layers": header.setting("nextn_predict_layers", 0),
    }


_NAMES = {"mlp.experts.": "mixer.experts.", "backbone.": "model."}
_BOTH: dict[str, Any] = {"types": ("nemotron_h",), "orders": adjacent_pairs, "packed": False, "names": _NAMES}
FAMILIES = (
    Family(architecture="nemotron_h", settings=_settings, **_BOTH),
    Family(architecture="nemotron_h_moe", settings=_mixture, mixture=True, **_BOTH),
)
