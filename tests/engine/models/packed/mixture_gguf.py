"""Tiny mixtures of experts as GGUF files, as llama.cpp writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from gguf import (
    MODEL_ARCH,
    MODEL_ARCH_NAMES,
    GGMLQuantizationType,
    GGUFWriter,
    RopeScalingType,
    get_tensor_name_map,
    quants,
)
from safetensors.torch import load_file
from torch import Tensor

from specchat.engine.models.gguf.blocks import GgmlType
from tests.engine.models.gguf.test_blocks import random_blocks
from tests.tiny_model import add_tokenizer


def write_gpt_oss_gguf(folder: Path, file: Path) -> Path:
    """Write a model of MXFP4 experts, whose other matrices become Q8_0; give the file back."""
    writer, names = _started(folder, file, MODEL_ARCH.GPT_OSS)
    state = load_file(folder / "model.safetensors")
    for name in sorted(state):
        if name.endswith("_scales"):
            continue
        if name.endswith("_blocks"):
            scales = state[name.replace("_blocks", "_scales")]
            raw = torch.cat([scales[..., None], _in_halves(state[name])], dim=-1)
            for part, rows in _parts(name.removesuffix("_blocks"), raw):
                kind = GGMLQuantizationType.MXFP4
                writer.add_tensor(f"{names.get_name(part)}.weight", rows.flatten(2).numpy(), raw_dtype=kind)
        elif ".experts." in name:
            for part, rows in _parts(name.removesuffix("_bias"), state[name]):
                writer.add_tensor(f"{names.get_name(part)}.bias", rows.float().numpy())
        else:
            _add(writer, names, f"{name}.weight" if name.endswith("sinks") else name, state[name])
    return _finished(writer, file)


def write_qwen3_moe_gguf(folder: Path, file: Path, kinds: dict[str, GgmlType]) -> Path:
    """Write a Qwen3-MoE whose experts are random blocks, of a type for each projection; give the file back."""
    writer, names = _started(folder, file, MODEL_ARCH.QWEN3MOE)
    state = load_file(folder / "model.safetensors")
    for name in sorted(state):
        if ".experts." not in name:
            _add(writer, names, name, state[name])
        elif ".experts.0." in name:
            part = name.split(".")[-2]
            experts = sum(name.replace(".experts.0.", f".experts.{i}.") in state for i in range(64))
            rows, columns = state[name].shape
            raw = random_blocks(kinds[part], experts * rows, columns, 0.0005).reshape(experts, rows, -1)
            found = names.get_name(name.replace(".experts.0.", ".experts."), try_suffixes=(".weight",))
            writer.add_tensor(found, raw, raw_dtype=GGMLQuantizationType(kinds[part]))
    return _finished(writer, file)


def _started(folder: Path, file: Path, architecture: MODEL_ARCH) -> tuple[GGUFWriter, Any]:
    """A writer with the metadata of a model, and the map from its names to those of the file."""
    config = json.loads((folder / "config.json").read_text())
    writer = GGUFWriter(file, MODEL_ARCH_NAMES[architecture])
    _add_metadata(writer, config)
    add_tokenizer(writer, folder)
    return writer, get_tensor_name_map(architecture, config["num_hidden_layers"])


def _add(writer: GGUFWriter, names: Any, name: str, weight: Tensor) -> None:
    """Add a weight: a matrix in Q8_0, a router or a vector in float32."""
    plain = weight.ndim == 1 or "router" in name or name.endswith("mlp.gate.weight")
    kind = GGMLQuantizationType.F32 if plain else GGMLQuantizationType.Q8_0
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    writer.add_tensor(found, quants.quantize(weight.float().numpy(), kind), raw_dtype=kind)


def _finished(writer: GGUFWriter, file: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add_metadata(writer: GGUFWriter, config: dict[str, Any]) -> None:
    rope = config["rope_parameters"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_expert_feed_forward_length(config.get("moe_intermediate_size", config["intermediate_size"]))
    writer.add_expert_count(config.get("num_local_experts") or config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    if config["model_type"] == "gpt_oss":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def _in_halves(blocks: Tensor) -> Tensor:
    """Blocks [..., 16] of neighbouring columns per byte as ggml has them: columns i and i + 16 in a byte."""
    codes = torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(-2)
    return codes[..., :16] | codes[..., 16:] << 4


def _parts(name: str, values: Tensor) -> list[tuple[str, Tensor]]:
    """The projections of a parameter with the experts of a layer."""
    if "gate_up" not in name:
        return [(name, values.contiguous())]
    pairs = ((name.replace("gate_up", part), values[:, i::2]) for i, part in enumerate(("gate", "up")))
    return [(part, rows.contiguous()) for part, rows in pairs]
