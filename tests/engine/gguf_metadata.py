"""What llama.cpp's converter writes into a GGUF file about the configuration of a model."""

from typing import Any


def metadata_of(architecture: str, config: Any) -> dict[str, Any]:
    """The keys of an architecture with their values, from a model's configuration."""
    size = head_size(config, "sliding_attention")
    rope = getattr(config, "rope_parameters", None) or {"rope_type": "default", "rope_theta": 10000.0}
    rope = rope.get("full_attention", rope)
    found = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": _key_heads(config),
        "attention.key_length": size,
        "attention.value_length": size,
        "attention.layer_norm_rms_epsilon": getattr(config, "norm_eps", None) or getattr(config, "rms_norm_eps", 1e-5),
        "rope.dimension_count": int(size * rope.get("partial_rotary_factor", 1.0)),
        "rope.freq_base": rope["rope_theta"],
        "vocab_size": config.vocab_size,
    }
    if rope["rope_type"] == "yarn":
        found |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": rope["factor"],
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            "rope.scaling.yarn_beta_fast": rope.get("beta_fast", 32.0),
            "rope.scaling.yarn_beta_slow": rope.get("beta_slow", 1.0),
        }
    if "mscale_all_dim" in rope:
        found["rope.scaling.yarn_log_multiplier"] = rope["mscale_all_dim"]
        found["attention.temperature_scale"] = rope["llama_4_scaling_beta"]
    if rope["rope_type"] == "longrope":
        found["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    if getattr(config, "sliding_window", None):
        found["attention.sliding_window"] = config.sliding_window
    return found | _special(architecture, config)


def _key_heads(config: Any) -> int | list[int]:
    """Key heads, of each layer if those with full attention have another number."""
    if config.model_type != "gemma4_text":
        return int(config.num_key_value_heads)
    each = [layer.num_key_value_heads for layer in config.per_layer_config]
    return each if len(set(each)) > 1 else int(each[0])


def head_size(config: Any, kind: str) -> int:
    """Head size of the layers of a type."""
    if config.model_type == "gemma4_text":
        return int(config.per_layer_config[config.layer_types.index(kind)].head_dim)
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


_HYBRID_KEYS = {
    "ssm.conv_kernel": "mamba_d_conv", "ssm.state_size": "mamba_d_state", "ssm.group_count": "mamba_n_groups",
    "ssm.time_step_rank": "mamba_n_heads", "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok", "expert_shared_feed_forward_length": "shared_intermediate_size",
}  # fmt: skip
_KEYS = {
    "qwen35": {
        "ssm.conv_kernel": "linear_conv_kernel_dim", "ssm.state_size": "linear_key_head_dim",
        "ssm.group_count": "linear_num_key_heads", "ssm.time_step_rank": "linear_num_value_heads",
    },
    "qwen35moe": {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
    "lfm2": {"shortconv.l_cache": "conv_L_cache"},
    "lfm2moe": {"leading_dense_block_count": "num_dense_layers"},
    "granite": {
        "embedding_scale": "embedding_multiplier", "attention.scale": "attention_multiplier",
        "residual_scale": "residual_multiplier", "logit_scale": "logits_scaling",
    },
    "granitehybrid": _HYBRID_KEYS,
    "nemotron_h": {
        "attention.layer_norm_epsilon": "layer_norm_epsilon", "ssm.conv_kernel": "conv_kernel",
        "ssm.state_size": "ssm_state_size", "ssm.group_count": "n_groups", "ssm.time_step_rank": "mamba_num_heads",
    },
    "nemotron_h_moe": {
        "expert_count": "n_routed_experts", "expert_used_count": "num_experts_per_tok",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
        "expert_shared_count": "n_shared_experts", "expert_weights_norm": "norm_topk_prob",
        "expert_weights_scale": "routed_scaling_factor", "expert_group_count": "n_group",
    },
    "gemma4": {
        "attention.shared_kv_layers": "num_kv_shared_layers",
        "embedding_length_per_layer_input": "hidden_size_per_layer_input",
    },
}  # fmt: skip
"""Beginning of an architecture's name to its own keys, and what transformers calls them."""


def _special(architecture: str, config: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if getattr(config, "num_experts", 0):
        found = {
            "expert_count": config.num_experts,
            "expert_used_count": getattr(config, "top_k_experts", None) or config.num_experts_per_tok,
            "expert_feed_forward_length": getattr(config, "moe_intermediate_size", config.intermediate_size),
        }
    for start, keys in _KEYS.items():
        if architecture.startswith(start):
            found |= {key: getattr(config, name) for key, name in keys.items()}
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", ())
    if architecture.startswith(("lfm2", "granitehybrid", "nemotron_h")):
        found["attention.head_count_kv"] = [config.num_key_value_heads * (kind == "full_attention") for kind in kinds]
    if architecture.startswith("qwen35"):
        found |= {
            "ssm.inner_size": config.linear_value_head_dim * config.linear_num_value_heads,
            "full_attention_interval": 4,
            "rope.dimension_sections": [*config.rope_parameters["mrope_section"], 0],
            "attention.recurrent_layers": [kind == "linear_attention" for kind in config.layer_types],
        }
    if architecture == "lfm2moe":
        found["expert_gating_func"] = 2
    if architecture.startswith("gemma"):
        keys = ("attn_logit_softcapping", "final_logit_softcapping")
        found |= {key: getattr(config, key) for key in keys if getattr(config, key, None)}
    if architecture == "granitehybrid":
        found |= {"rope.scaling.finetuned": False, "ssm.inner_size": config.mamba_n_heads * config.mamba_d_head}
    if architecture.startswith("nemotron_h"):
        found |= {
            "feed_forward_length": [config.intermediate_size * (kind in ("mlp", "moe")) for kind in kinds],
            "ssm.inner_size": config.mamba_num_heads * config.mamba_head_dim,
        }
    return found | _gemma4(config) if architecture == "gemma4" else found


def _gemma4(config: Any) -> dict[str, Any]:
    wide, first = config.use_double_wide_mlp, config.num_hidden_layers - config.num_kv_shared_layers
    full, sliding = (head_size(config, kind) for kind in ("full_attention", "sliding_attention"))
    return {
        "feed_forward_length": [
            config.intermediate_size * (1 + (wide and i >= first)) for i in range(config.num_hidden_layers)
        ],
        **dict.fromkeys(("attention.key_length", "attention.value_length", "rope.dimension_count"), full),
        **dict.fromkeys(
            ("attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"), sliding
        ),
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config.layer_types],
        "rope.freq_base_swa": config.rope_parameters["sliding_attention"]["rope_theta"],
    }
