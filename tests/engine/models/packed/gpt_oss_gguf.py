"""A tiny gpt-oss model as a GGUF file, as llama.cpp's converter writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, RopeScalingType, get_tensor_name_map, quants
from safetensors.torch import load_file
from torch import Tensor

from tests.tiny_model import add_tokenizer


def write_gpt_oss_gguf(folder: Path, file: Path) -> Path:
    """Write a model of MXFP4 experts, whose other matrices become Q8_0; give the file back."""
    config = json.loads((folder / "config.json").read_text())
    writer = GGUFWriter(file, "gpt-oss")
    _add_metadata(writer, config)
    add_tokenizer(writer, folder)
    names = get_tensor_name_map(MODEL_ARCH.GPT_OSS, config["num_hidden_layers"])
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
            stored = f"{name}.weight" if name.endswith("sinks") else name
            found = names.get_name(stored, try_suffixes=(".weight", ".bias"))
            plain = state[name].ndim == 1 or "router" in name
            kind = GGMLQuantizationType.F32 if plain else GGMLQuantizationType.Q8_0
            writer.add_tensor(found, quants.quantize(state[name].float().numpy(), kind), raw_dtype=kind)
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
    writer.add_expert_feed_forward_length(config["intermediate_size"])
    writer.add_expert_count(config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_scaling_type(RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_vocab_size(config["vocab_size"])


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
