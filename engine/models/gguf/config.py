"""Configuration of transformers from the metadata of a GGUF file, for the families that run on our own kernels.

Keys: llama.cpp's (`gguf-py/gguf/constants.py`), as its converter writes them. What a file does not state follows from
its tensors, or is a constant of the family in llama.cpp (`src/models`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from specchat.engine.errors import EngineError, check, errors_as, first_line
from specchat.engine.models.checkpoint import allow_any_heads
from specchat.engine.models.gguf.header import GgufHeader
from specchat.engine.models.gguf.rope import TABLE, float32_table, rope_parameters

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

Settings = dict[str, Any]

_WIDE_SCALE = {"gemma2": 46, "gemma3": 62}
"""Layers of the 27B model, whose attention is scaled by hidden size / heads and not by the head size."""


def gguf_config(header: GgufHeader) -> PreTrainedConfig:
    """The configuration of a model.

    Raises:
        EngineError: the file lacks a setting, or has one that the modelling code does not know.
    """
    from transformers import AutoConfig

    allow_any_heads()
    kind, special = FAMILIES[header.architecture]
    with errors_as(
        lambda error: (
            f"the metadata of {header.path} describes no {header.architecture} model ({first_line(error)}): "
            "fetch the file again"
        )
    ):
        settings = _common(header) | special(header)
        config: PreTrainedConfig = AutoConfig.for_model(kind, **settings)
        return config


def mtp_layers(header: GgufHeader) -> int:
    """Number of multi-token-prediction layers, which are the last blocks of the file."""
    return int(header.setting("nextn_predict_layers", 0))


def _common(header: GgufHeader) -> Settings:
    heads, key_heads = header.setting("attention.head_count"), header.setting("attention.head_count_kv", None)
    tokens = {"bos": "bos", "eos": "eos", "pad": "padding"}
    if header.setting("expert_count", 0) and header.architecture not in _MIXTURES:
        raise EngineError(
            f"{header.path} is a mixture of experts of a kind that is not supported: choose another model"
        )
    shared = max(key_heads) if isinstance(key_heads, list) else key_heads or heads
    check(
        isinstance(heads, list) or heads % shared == 0,
        f"{header.path} states {header.architecture}.attention.head_count {heads}, which is no multiple of "
        f"attention.head_count_kv {shared}: fetch it again",
    )
    settings = {
        "vocab_size": header.tensor("token_embd.weight").shape[1],
        "hidden_size": header.setting("embedding_length"),
        "num_hidden_layers": _layers(header),
        "num_attention_heads": heads,
        "head_dim": header.setting("attention.key_length", None),
        "num_key_value_heads": shared,
        "intermediate_size": header.setting("feed_forward_length", None),
        "max_position_embeddings": header.setting("context_length"),
        "rms_norm_eps": header.setting("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "rope_parameters": rope_parameters(header),
        **{f"{ours}_token_id": _token(header, theirs) for ours, theirs in tokens.items()},
    }
    return {name: value for name, value in settings.items() if value is not None or name.endswith("_token_id")}


def _token(header: GgufHeader, name: str) -> int | None:
    """A token that the file names, if the embedding has a row for it."""
    token = header.metadata.get(f"tokenizer.ggml.{name}_token_id")
    return token if isinstance(token, int) and 0 <= token < header.tensor("token_embd.weight").shape[1] else None


def _layers(header: GgufHeader) -> int:
    count = int(header.setting("block_count")) - mtp_layers(header)
    check(count > 0, f"{header.path} states {header.architecture}.nextn_predict_layers beyond its block_count")
    return count


def _head_size(header: GgufHeader) -> int:
    hidden, heads = header.setting("embedding_length"), header.setting("attention.head_count")
    return int(
        header.setting("attention.key_length", None) or hidden // (max(heads) if isinstance(heads, list) else heads)
    )


def _has(header: GgufHeader, name: str) -> list[bool]:
    """Whether each layer has such a tensor."""
    return [f"blk.{layer}.{name}" in header.tensors for layer in range(_layers(header))]


def _layer_types(header: GgufHeader, period: int) -> list[str]:
    """Sliding or full attention of each layer; if only a period is known, its last layer has full attention."""
    pattern = header.setting("attention.sliding_window_pattern", period)
    if not isinstance(pattern, list):
        pattern = [bool((layer + 1) % pattern) for layer in range(_layers(header))]
    return ["sliding_attention" if slides else "full_attention" for slides in pattern[: _layers(header)]]


def _llama(header: GgufHeader) -> Settings:
    stated = header.setting("attention.key_length", None) or header.setting("rope.dimension_count", None)
    mlp_bias = any(any(_has(header, f"ffn_{part}.bias")) for part in ("gate", "up", "down"))
    own = {"head_dim": stated or _head_size(header), "mlp_bias": mlp_bias, "sliding_window": None}
    return own | _attention_bias(header)


def _qwen3(header: GgufHeader) -> Settings:
    return {"head_dim": _head_size(header)} | _attention_bias(header)


def _attention_bias(header: GgufHeader) -> Settings:
    """llama.cpp reads each bias that a file has; the others are zero."""
    return {"attention_bias": any(any(_has(header, f"attn_{part}.bias")) for part in ("q", "k", "v", "output"))}


def _qwen3_moe(header: GgufHeader) -> Settings:
    routed = _has(header, "ffn_gate_inp.weight")
    return _qwen3(header) | {
        "num_experts": header.setting("expert_count"),
        "num_experts_per_tok": header.setting("expert_used_count"),
        "moe_intermediate_size": header.setting("expert_feed_forward_length"),
        "norm_topk_prob": True,
        "mlp_only_layers": [layer for layer, mixture in enumerate(routed) if not mixture],
    }


def _qwen35(header: GgufHeader) -> Settings:
    size, value_heads = _head_size(header), header.setting("ssm.time_step_rank")
    recurrent = _has(header, "ssm_a")
    rope = {
        "partial_rotary_factor": header.setting("rope.dimension_count") / size,
        "mrope_section": [section for section in header.setting("rope.dimension_sections") if section],
        "mrope_interleaved": True,
    }
    return {
        "head_dim": size,
        "layer_types": ["linear_attention" if delta else "full_attention" for delta in recurrent],
        "linear_conv_kernel_dim": header.setting("ssm.conv_kernel"),
        "linear_key_head_dim": header.setting("ssm.state_size"),
        "linear_num_key_heads": header.setting("ssm.group_count"),
        "linear_num_value_heads": value_heads,
        "linear_value_head_dim": header.setting("ssm.inner_size") // value_heads,
        "rope_parameters": rope_parameters(header) | rope,
        "mtp_num_hidden_layers": mtp_layers(header),
    }


def _qwen35_moe(header: GgufHeader) -> Settings:
    return _qwen35(header) | {
        "num_experts": header.setting("expert_count"),
        "num_experts_per_tok": header.setting("expert_used_count"),
        "moe_intermediate_size": header.setting("expert_feed_forward_length"),
        "shared_expert_intermediate_size": header.setting("expert_shared_feed_forward_length"),
    }


def _gemma2(header: GgufHeader) -> Settings:
    return _gemma_attention(header) | {
        "attn_logit_softcapping": header.setting("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": header.setting("final_logit_softcapping", 30.0),
    }


def _gemma3(header: GgufHeader) -> Settings:
    sliding = {"rope_type": "default", "rope_theta": header.setting("rope.freq_base_swa", 10_000.0)}
    return _gemma_attention(header) | {
        "layer_types": _layer_types(header, 6),
        "rope_parameters": {"full_attention": rope_parameters(header), "sliding_attention": sliding},
        "final_logit_softcapping": header.setting("final_logit_softcapping", None),
    }


def _gemma_attention(header: GgufHeader) -> Settings:
    size, hidden = _head_size(header), header.setting("embedding_length")
    wide = _layers(header) == _WIDE_SCALE[header.architecture]
    return {
        "head_dim": size,
        "query_pre_attn_scalar": hidden // header.setting("attention.head_count") if wide else size,
        "sliding_window": header.setting("attention.sliding_window"),
    }


def _gemma4(header: GgufHeader) -> Settings:
    types, inner = _layer_types(header, 6), header.setting("feed_forward_length")
    key_heads, table = header.setting("attention.head_count_kv"), float32_table(header, TABLE)
    of_type = dict(zip(types, key_heads if isinstance(key_heads, list) else [key_heads] * len(types), strict=True))
    full = rope_parameters(header) | {
        "rope_type": "proportional",
        "partial_rotary_factor": float((table == 1.0).mean()),
    }
    sliding = {"rope_type": "default", "rope_theta": header.setting("rope.freq_base_swa", 10_000.0)}
    own = types[: len(types) - header.setting("attention.shared_kv_layers", 0)]
    values = _has(header, "attn_v.weight")
    per_layer = header.tensors.get("per_layer_token_embd.weight")
    return {
        "head_dim": header.setting("attention.key_length_swa"),
        "global_head_dim": header.setting("attention.key_length"),
        "num_key_value_heads": of_type.get("sliding_attention", max(of_type.values())),
        "num_global_key_value_heads": of_type.get("full_attention"),
        "attention_k_eq_v": not all(values[layer] for layer in range(len(own))),
        "num_kv_shared_layers": len(types) - len(own),
        "layer_types": types,
        "sliding_window": header.setting("attention.sliding_window"),
        "rope_parameters": {"full_attention": full, "sliding_attention": sliding},
        "intermediate_size": min(inner) if isinstance(inner, list) else inner,
        "use_double_wide_mlp": isinstance(inner, list) and max(inner) > min(inner),
        "hidden_size_per_layer_input": header.setting("embedding_length_per_layer_input", 0),
        **({"vocab_size_per_layer_input": per_layer.shape[1]} if per_layer else {}),
        "final_logit_softcapping": header.setting("final_logit_softcapping", None),
    }


def _gpt_oss(header: GgufHeader) -> Settings:
    rope = rope_parameters(header)
    return {
        "head_dim": _head_size(header),
        "num_local_experts": header.setting("expert_count"),
        "num_experts_per_tok": header.setting("expert_used_count"),
        "intermediate_size": header.setting("expert_feed_forward_length"),
        "sliding_window": header.setting("attention.sliding_window"),
        "layer_types": _layer_types(header, 2),
        "rope_parameters": rope | ({"truncate": False} if rope["rope_type"] == "yarn" else {}),
    }


def _lfm2(header: GgufHeader) -> Settings:
    convolutions = _has(header, "shortconv.conv.weight")
    return {
        "norm_eps": header.setting("attention.layer_norm_rms_epsilon"),
        "layer_types": ["conv" if each else "full_attention" for each in convolutions],
        "conv_L_cache": header.setting("shortconv.l_cache"),
        "conv_bias": any(_has(header, "shortconv.conv.bias")),
        "block_auto_adjust_ff_dim": False,
    }


def _phi3(header: GgufHeader) -> Settings:
    size, rope = _head_size(header), rope_parameters(header)
    share = header.setting("rope.dimension_count", size) / size
    original = {name: value for name, value in rope.items() if name == "original_max_position_embeddings"}
    return original | {
        "rope_parameters": rope | ({} if share == 1 else {"partial_rotary_factor": share}),
        "sliding_window": header.setting("attention.sliding_window", 0) or None,
    }


_MIXTURES = ("qwen3moe", "qwen35moe", "gpt-oss")
FAMILIES: dict[str, tuple[str, Callable[[GgufHeader], Settings]]] = {
    "llama": ("llama", _llama),
    "qwen2": ("qwen2", lambda _: {}),
    "qwen3": ("qwen3", _qwen3),
    "qwen3moe": ("qwen3_moe", _qwen3_moe),
    "qwen35": ("qwen3_5_text", _qwen35),
    "qwen35moe": ("qwen3_5_moe_text", _qwen35_moe),
    "gemma2": ("gemma2", _gemma2),
    "gemma3": ("gemma3_text", _gemma3),
    "gemma4": ("gemma4_text", _gemma4),
    "gpt-oss": ("gpt_oss", _gpt_oss),
    "lfm2": ("lfm2", _lfm2),
    "phi3": ("phi3", _phi3),
}
"""llama.cpp's name of a family to transformers' model type and what is special about its settings."""
