"""Tiny random models as GGUF files, as llama.cpp's converter writes them, one of each family that is read."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFValueType, GGUFWriter, get_tensor_name_map, quants
from torch import Tensor

from specchat.engine.models.load import load_model
from specchat.engine.progress import ignore_progress
from tests.engine.families import FAMILIES, GRANITE, GRANITE_EXPERTS, GRANITE_HYBRID, write_model
from tests.engine.gguf_metadata import head_size, metadata_of
from tests.engine.models.gguf.test_blocks import random_blocks
from tests.tiny_model import add_tokenizer

Kind = Callable[[str, Tensor], GGMLQuantizationType]
"""Type of a tensor from its name in the file and its values."""

_DELTA: dict[str, Any] = {
    "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}  # fmt: skip
_GPT_OSS = FAMILIES["gpt-oss"][1] | {"initializer_range": 0.2}
_YARN = _GPT_OSS["rope_parameters"] | {"truncate": False, "beta_fast": 32.0, "beta_slow": 1.0}
_UNSCALED = {"rope_type": "default", "rope_theta": 150000.0}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_CONV = {"layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False, "conv_L_cache": 3}
_LFM2_MOE = FAMILIES["lfm2-moe"][1] | {"conv_L_cache": 3, "routed_scaling_factor": 1.0}
_GEMMA4_MOE = FAMILIES["gemma4-moe"][1] | {"use_double_wide_mlp": False, "vocab_size_per_layer_input": 262_144}
_GEMMA3 = {"sliding_window": 8, "layer_types": ["sliding_attention"] * 5 + ["full_attention"], "num_hidden_layers": 6}
_PHI3 = {"resid_pdrop": 0.0, "sliding_window": 64}
_GRANITE_HYBRID = GRANITE_HYBRID | {"mamba_chunk_size": 256, "tie_word_embeddings": True}
_NEMOTRON_H = {
    "layers_block_type": ["linear_attention", "full_attention", "mlp"], "mamba_num_heads": 4, "mamba_head_dim": 32,
    "ssm_state_size": 16, "n_groups": 2, "initializer_range": 0.1, "layer_norm_epsilon": 1e-5,
}  # fmt: skip
_NEMOTRON_H_MOE = _NEMOTRON_H | {
    "layers_block_type": ["linear_attention", "full_attention", "moe"], "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "intermediate_size": 32, "moe_shared_expert_intermediate_size": 64,
    "routed_scaling_factor": 2.5,
}  # fmt: skip
FILES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "llama", {}),
    "qwen2": ("qwen2", "qwen2", {}),
    "qwen3": ("qwen3", "qwen3", {}),
    "qwen3moe": ("qwen3moe", "qwen3_moe", {**_EXPERTS, "norm_topk_prob": True}),
    "qwen35": ("qwen35", "qwen3_5_text", _DELTA),
    "qwen35-tied": ("qwen35", "qwen3_5_text", {**_DELTA, "linear_num_value_heads": 2, "tie_word_embeddings": True}),
    "qwen35moe": ("qwen35moe", "qwen3_5_moe_text", {**_DELTA, **_EXPERTS, "shared_expert_intermediate_size": 32}),
    "gemma2": ("gemma2", "gemma2", {"sliding_window": 8, "query_pre_attn_scalar": 16, "tie_word_embeddings": True}),
    "gemma3": ("gemma3", "gemma3_text", {**_GEMMA3, "query_pre_attn_scalar": 16, "tie_word_embeddings": True}),
    "gemma4": ("gemma4", *FAMILIES["gemma4"]),
    "gemma4-moe": ("gemma4", "gemma4_text", _GEMMA4_MOE),
    "mistral3": ("mistral3", *FAMILIES["ministral3"]),
    "phi3": ("phi3", "phi3", {**_PHI3, "rope_parameters": FAMILIES["phi3-long"][1]["rope_parameters"]}),
    "lfm2": ("lfm2", "lfm2", {**_CONV, "tie_word_embeddings": True}),
    "lfm2moe": ("lfm2moe", "lfm2_moe", {**_LFM2_MOE, "tie_word_embeddings": True}),
    "granite": ("granite", "granite", GRANITE),
    "granitehybrid": ("granitehybrid", "granitemoehybrid", _GRANITE_HYBRID),
    "granitehybrid-moe": ("granitehybrid", "granitemoehybrid", _GRANITE_HYBRID | GRANITE_EXPERTS),
    "nemotron_h": ("nemotron_h", "nemotron_h", _NEMOTRON_H),
    "nemotron_h_moe": ("nemotron_h_moe", "nemotron_h", _NEMOTRON_H_MOE),
    "gpt-oss": ("gpt-oss", "gpt_oss", {**_GPT_OSS, "rope_parameters": _YARN}),
    "gpt-oss-unscaled": ("gpt-oss", "gpt_oss", {**_GPT_OSS, "rope_parameters": _UNSCALED}),
}
"""Name to llama.cpp's architecture, transformers' model type and its settings."""


_DRAWN = (GGMLQuantizationType.Q4_K, GGMLQuantizationType.Q5_K, GGMLQuantizationType.Q6_K)
"""Types that the gguf package does not quantise to: their blocks are random."""


def plain(_: str, __: Tensor) -> GGMLQuantizationType:
    """All values as they are."""
    return GGMLQuantizationType.F32


def write_source(name: str, folder: Path, **more: Any) -> Path:
    """Write the tiny model of one of `FILES` as safetensors; give the folder back."""
    _, kind, settings = FILES[name]
    return write_model(kind, settings | more, folder)


def write_gguf(
    name: str,
    folder: Path,
    file: Path,
    kind: Kind = plain,
    mtp: dict[str, Tensor] | None = None,
    tokenizer: str = "",
    keys: Mapping[str, Any] = MappingProxyType({}),
    rope_factors: Any = None,
    left_out: str = "no tensor",
    **metadata: Any,
) -> Path:
    """Write the model of a folder from `write_source` as a GGUF file; give the file back.

    Args:
        name: one of `FILES`, or an architecture.
        folder: of the model.
        file: where to.
        kind: types of the tensors.
        mtp: a multi-token-prediction layer, by the names of checkpoints.
        tokenizer: another value of tokenizer.ggml.pre.
        keys: more keys.
        rope_factors: numbers of a table of factors.
        left_out: beginning of the names of tensors that it lacks, as a regular expression.
        metadata: more keys of the architecture, "__" for dots.
    """
    architecture = FILES.get(name, (name,))[0]
    network = load_model(folder, torch.device("cpu"), torch.float32, ignore_progress).model
    config: Any = network.config
    layers = config.num_hidden_layers + bool(mtp)
    writer = GGUFWriter(file, architecture)
    for key, value in (metadata_of(architecture, config) | {"block_count": layers} | metadata).items():
        _add(writer, f"{architecture}.{key.replace('__', '.')}", value)
    if mtp:
        writer.add_uint32(f"{architecture}.nextn_predict_layers", 1)
    add_tokenizer(writer, folder)
    if tokenizer:
        writer.add_tokenizer_pre(tokenizer)
    for key, value in keys.items():
        _add(writer, key, value)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", np.float32(rope_factors))
    state: dict[str, Tensor] = {**network.state_dict(), **_renamed(mtp or {}, config.num_hidden_layers)}
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    made = _tensors(architecture, config, state, layers)
    for place, weight in ((place, weight) for place, weight in made if not re.match(left_out, place)):
        values = weight.float().contiguous()
        chosen = kind(place, values) if values.ndim > 1 and "norm" not in place else GGMLQuantizationType.F32
        if chosen in _DRAWN:
            raw = random_blocks(chosen, values[..., 0].numel(), values.shape[-1], 0.0005)
            raw = raw.reshape(*values.shape[:-1], -1)
        else:
            raw = quants.quantize(values.numpy(), chosen)
        writer.add_tensor(place, raw, raw_dtype=chosen)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    return file


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    kinds = {
        bool: GGUFValueType.BOOL, int: GGUFValueType.UINT32, float: GGUFValueType.FLOAT32, str: GGUFValueType.STRING,
    }  # fmt: skip
    if isinstance(value, list):
        writer.add_array(key, value)
    else:
        writer.add_key_value(key, value, kinds[type(value)])


def _renamed(mtp: dict[str, Tensor], layer: int) -> dict[str, Tensor]:
    own = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head_norm"}
    names = {name: name.removeprefix("mtp.").removesuffix(".weight") for name in mtp}
    return {
        f"nextn.{own[part]}" if part in own else name.replace("mtp.layers.0", f"model.layers.{layer}"): mtp[name]
        for name, part in names.items()
    }


def mtp_layer(folder: Path) -> dict[str, Tensor]:
    """A random multi-token-prediction layer for the model of a folder from `write_source`: its last layer, changed."""
    network = load_model(folder, torch.device("cpu"), torch.float32, ignore_progress).model
    config: Any = network.config
    last = f"model.layers.{config.num_hidden_layers - 1}."
    layer = {
        name.replace(last, "mtp.layers.0."): 0.9 * weight
        for name, weight in network.state_dict().items()
        if name.startswith(last)
    }
    norms = ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
    size, generator = config.hidden_size, torch.Generator().manual_seed(3)
    shapes = {"fc": (size, 2 * size), **dict.fromkeys(norms, (size,))}
    own = {f"mtp.{name}.weight": 0.1 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return layer | own


def _tensors(architecture: str, config: Any, state: dict[str, Tensor], layers: int) -> Iterator[tuple[str, Tensor]]:
    """Tensors of the file: what the converter's `modify_tensors` yields, and its extra ones."""
    number = next(number for number, name in MODEL_ARCH_NAMES.items() if name == architecture)
    names = get_tensor_name_map(number, layers)
    for name, weight in _split(architecture, state):
        changed = _changed(architecture, config, name, weight)
        if name.startswith("nextn."):
            yield f"blk.{layers - 1}.{name}.weight", changed
            continue
        spelled = name.replace(".dt_bias", ".dt_proj.bias").replace(".expert_bias", ".expert_bias.bias")
        spelled = spelled.replace("e_score_correction_bias", "e_score_correction.bias")
        spelled = spelled.replace("router.scale", "router.proj.scale")
        spelled = spelled.replace("router.per_expert_scale", "experts.down_proj.scale")
        spelled += ".weight" if name.endswith(("layer_scalar", "sinks")) else ""
        each = (spelled, spelled.replace("model.", "backbone."))
        found = next(filter(None, (names.get_name(name, try_suffixes=(".weight", ".bias", ".scale")) for name in each)))
        assert found, name
        yield found, changed
    rope = getattr(config, "rope_parameters", {})
    if architecture == "gemma4":
        half = head_size(config, "full_attention") // 2
        turned = int(half * rope["full_attention"]["partial_rotary_factor"])
        yield "rope_freqs.weight", torch.tensor([1.0] * turned + [1e30] * (half - turned))
    if rope.get("rope_type") == "longrope":
        for part in ("long", "short"):
            yield f"rope_factors_{part}.weight", torch.tensor(rope[f"{part}_factor"])


def _split(architecture: str, state: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Experts as gate, up and down."""
    for name, weight in state.items():
        stem, _, last = name.rpartition(".")
        if architecture == "granitehybrid":  # whose gate and up are one matrix, which may be a whole MLP
            mlp = "mlp.shared_expert" if any("experts" in each for each in state) else "mlp"
            stem = stem.replace("block_sparse_moe.router", "mlp.gate").replace("block_sparse_moe", "mlp")
            name = f"{stem}.{last}".replace("shared_mlp.output_linear", f"{mlp}.down_proj")
        if "shared_mlp" in name:
            for part, values in zip(("gate_proj", "up_proj"), weight.chunk(2), strict=True):
                yield name.replace("shared_mlp.input_linear", f"{mlp}.{part}"), values
        elif not stem.endswith(".experts"):
            yield name, weight
        elif architecture == "gpt-oss":  # gate and up alternate, and matrices are transposed
            kind = "bias" if last.endswith("_bias") else "weight"
            turned = weight if kind == "bias" else weight.transpose(1, 2)
            parts = (
                {"down_proj": turned} if "down" in last else {"gate_proj": turned[:, ::2], "up_proj": turned[:, 1::2]}
            )
            for part, values in parts.items():
                yield f"{stem}.{part}.{kind}", values
        elif architecture == "nemotron_h_moe":  # without gates
            yield f"{stem.replace('mixer', 'mlp')}.{last}.weight", weight
        elif last == "down_proj" or architecture == "gemma4":  # whose gate and up stay in one tensor
            yield f"{name}.weight", weight
        else:
            for part, values in zip(("gate_proj", "up_proj"), weight.chunk(2, dim=1), strict=True):
                yield f"{stem}.{part}.weight", values


def _changed(architecture: str, config: Any, name: str, weight: Tensor) -> Tensor:
    """A tensor as the converter writes it."""
    if architecture.startswith(("llama", "mistral3", "granite", "nemotron")) and ("q_proj" in name or "k_proj" in name):
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        return weight.view(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
    if architecture in ("gemma2", "gemma3") and name.endswith("norm.weight"):
        return weight + 1
    if architecture.startswith(("granitehybrid", "nemotron")) and (".mamba." in name or ".mixer." in name):
        if name.endswith((".A_log", ".D")):
            weight = weight[:, None]
        elif name.endswith(".norm.weight"):
            weight = weight.view(config.n_groups if architecture.startswith("nemotron") else config.mamba_n_groups, -1)
        elif "conv1d" in name:
            weight = weight.squeeze()
        return -torch.exp(weight) if name.endswith(".A_log") else weight
    if architecture.startswith("lfm2") and "conv.conv" in name:
        return weight.squeeze(1)
    if not architecture.startswith("qwen35"):
        return weight
    if "linear_attn." in name:
        weight = _tiled(config, name, weight)
    if name.endswith(".A_log"):
        return -torch.exp(weight)
    if "conv1d" in name:
        return weight.squeeze()
    is_norm = name.endswith(("norm.weight", "norm")) and not name.endswith("linear_attn.norm.weight")
    return weight + 1 if is_norm else weight


def _tiled(config: Any, name: str, weight: Tensor) -> Tensor:
    """Value heads in tiled order: the first ones of all key heads, then the second ones."""
    keys, per_key = config.linear_num_key_heads, config.linear_num_value_heads // config.linear_num_key_heads
    size, before = config.linear_value_head_dim, 2 * keys * config.linear_key_head_dim

    def reordered(part: Tensor, dimension: int, width: int) -> Tensor:
        shape = (*part.shape[:dimension], keys, per_key, width, *part.shape[dimension + 1 :])
        return part.reshape(shape).swapaxes(dimension, dimension + 1).reshape(part.shape)

    if "in_proj_qkv" in name or "conv1d" in name:
        return torch.cat([weight[:before], reordered(weight[before:], 0, size)])
    if "in_proj_z" in name:
        return reordered(weight, 0, size)
    if "out_proj" in name:
        return reordered(weight, 1, size)
    return weight if "norm" in name else reordered(weight, 0, 1)
