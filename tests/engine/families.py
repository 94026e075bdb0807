"""A tiny random model of each family that the quantised kernels run."""

import shutil
from pathlib import Path
from typing import Any

import torch

from specchat.engine.progress import silence_transformers
from tests.engine.mxfp4 import publish_in_mxfp4
from tests.tiny_model import CHAT_TEMPLATE, SPECIAL, tiny_tokenizer

_COMMON: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "initializer_range": 0.2,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
_LONG = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0], "original_max_position_embeddings": 128, "partial_rotary_factor": 0.5,
}  # fmt: skip
_MOE = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "mlp_only_layers": [1]}
_GPT_OSS = {"num_local_experts": 6, "num_experts_per_tok": 3, "sliding_window": 8, "initializer_range": 0.15} | {
    "rope_parameters": _YARN
}
_GEMMA4 = {
    "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 8,
    "global_head_dim": 32, "num_kv_shared_layers": 2, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": 320, "final_logit_softcapping": 30.0, "tie_word_embeddings": True,
}  # fmt: skip
_DENSE = {
    "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
}  # fmt: skip
_DELTA = {
    "initializer_range": 0.1, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "head_dim": 32, "linear_key_head_dim": 16, "linear_value_head_dim": 32, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
}  # fmt: skip
_DELTA_MOE = {
    "num_experts": 6, "num_experts_per_tok": 5, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48,
}  # fmt: skip
_LFM2_MOE = {
    "layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1, "num_experts": 6,
    "num_experts_per_tok": 3, "moe_intermediate_size": 32, "routed_scaling_factor": 1.5,
}  # fmt: skip
_GEMMA4_MOE = {
    "enable_moe_block": True, "num_experts": 4, "top_k_experts": 3, "moe_intermediate_size": 32,
    "intermediate_size": 256,
}  # fmt: skip
_MINISTRAL3 = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 16,
    "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.4, "beta_fast": 32.0, "beta_slow": 1.0,
}  # fmt: skip
GRANITE = {
    "embedding_multiplier": 12.0, "attention_multiplier": 0.1, "residual_multiplier": 0.22, "logits_scaling": 6.0
}  # fmt: skip
GRANITE_EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 3, "intermediate_size": 32}
GRANITE_HYBRID = GRANITE | {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "position_embedding_type": "nope",
    "num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 96, "mamba_d_state": 16,
    "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_n_groups": 2, "mamba_chunk_size": 8, "initializer_range": 0.1,
}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-biased": ("llama", {"attention_bias": True, "tie_word_embeddings": True}),
    "llama-window": ("llama", {"sliding_window": 8}),  # ignored when it is loaded, as in the modelling code
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}}),
    "llama3": ("llama", {"rope_parameters": _LLAMA3}),
    "mistral": ("mistral", {"sliding_window": 8}),
    "qwen2": ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    "qwen2-yarn": ("qwen2", {"rope_parameters": _YARN}),
    "qwen3": ("qwen3", {}),
    "qwen3-moe": ("qwen3_moe", _MOE),
    "gemma2": ("gemma2", {"sliding_window": 8, "query_pre_attn_scalar": 24, "tie_word_embeddings": True}),
    "gemma3": ("gemma3_text", {"sliding_window": 8, "sliding_window_pattern": 2, "query_pre_attn_scalar": 24}),
    "gemma4": ("gemma4_text", _GEMMA4),
    "gemma4-dense": ("gemma4_text", _GEMMA4 | _DENSE),
    "gemma4-moe": ("gemma4_text", _GEMMA4 | _DENSE | _GEMMA4_MOE),
    "phi3": ("phi3", {"sliding_window": 8, "resid_pdrop": 0.0}),
    "lfm2": ("lfm2", {"layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 32, "conv_bias": True}),
    "lfm2-moe": ("lfm2_moe", _LFM2_MOE),
    "ministral3": ("ministral3", {"rope_parameters": _MINISTRAL3}),
    "gpt-oss": ("gpt_oss", _GPT_OSS),
    "gpt-oss-mxfp4": ("gpt_oss", _GPT_OSS),
    "qwen3.5": ("qwen3_5_text", _DELTA),
    "qwen3.5-moe": ("qwen3_5_moe_text", _DELTA | _DELTA_MOE),
    "granite": ("granite", GRANITE | {"attention_bias": True, "tie_word_embeddings": True}),
    "granite-hybrid": ("granitemoehybrid", GRANITE_HYBRID),
    "granite-hybrid-moe": ("granitemoehybrid", GRANITE_HYBRID | GRANITE_EXPERTS),
    "granite-4-dense": (
        "granitemoehybrid",
        GRANITE_HYBRID | {"layer_types": ["full_attention"] * 3, "position_embedding_type": "rope"},
    ),
    "phi3-long": ("phi3", {"rope_parameters": _LONG, "original_max_position_embeddings": 128}),
}
"""Name to transformers' model type and what is special about it."""


_PLAIN = {name: value for name, value in _COMMON.items() if name != "head_dim"}
_GPT2 = {
    "n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 256, "attn_pdrop": 0.0, "embd_pdrop": 0.0,
    "resid_pdrop": 0.0, "tie_word_embeddings": True,
}  # fmt: skip
OTHERS: dict[str, dict[str, Any]] = {
    "gpt_neox": _PLAIN | {"num_key_value_heads": 4, "rotary_pct": 0.5},
    "stablelm": _PLAIN | {"num_key_value_heads": 4, "partial_rotary_factor": 0.25},
    "olmo2": _PLAIN,
    "gpt2": {name: _PLAIN[name] for name in ("vocab_size", "initializer_range", "bos_token_id", "eos_token_id")}
    | _GPT2,
}
"""Families that only transformers' modelling code runs, with a configuration each."""


def write_other(kind: str, folder: Path) -> Path:
    """Write the tiny model of one of `OTHERS`; give the folder back."""
    return _write(kind, OTHERS[kind], folder)


def write_family(name: str, folder: Path, **more: Any) -> Path:
    """Write the tiny model of a family with a byte-level tokenizer; give the folder back."""
    kind, special = FAMILIES[name]
    write_model(kind, special | more, folder)
    return publish_in_mxfp4(folder) if name.endswith("mxfp4") else folder


def family_config(name: str, **more: Any) -> Any:
    """Configuration of the tiny model of a family."""
    from transformers import AutoConfig

    kind, special = FAMILIES[name]
    return AutoConfig.for_model(**{"model_type": kind} | _COMMON | special | more)


def write_model(kind: str, settings: dict[str, Any], folder: Path) -> Path:
    """Write a tiny model of a type of transformers, with settings besides the common ones; give the folder back."""
    return _write(kind, _COMMON | settings, folder)


def write_with_images(text: Path, folder: Path) -> Path:
    """Write a Gemma 4 model that reads images too, whose text part is that of the folder `text`."""
    from transformers import AutoModelForCausalLM, Gemma4Config, Gemma4ForConditionalGeneration

    network: Any = AutoModelForCausalLM.from_pretrained(text)
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "position_embedding_size": 16}
    whole = Gemma4ForConditionalGeneration(
        Gemma4Config(text_config=network.config, vision_config=heads | sizes, audio_config=None)
    )
    whole.model.language_model.load_state_dict(network.model.state_dict())
    whole.to(torch.bfloat16).save_pretrained(folder)
    for file in text.glob("*token*"):
        shutil.copy(file, folder)
    return folder


def _write(kind: str, settings: dict[str, Any], folder: Path) -> Path:
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    silence_transformers()
    config = AutoConfig.for_model(kind, **settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        for parameter_name, parameter in model.named_parameters():  # norms and biases that do something
            if parameter.ndim == 1 or parameter_name.endswith("bias"):
                parameter.data += 0.1 * torch.randn_like(parameter) * (1 if "norm" in parameter_name else 3)
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith("layer_scalar"):
                buffer.mul_(0.75)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tiny_tokenizer(320), bos_token=SPECIAL[1], eos_token=SPECIAL[2], pad_token=SPECIAL[0]
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder
