"""Block drafters in GGUF files of llama.cpp's architectures `dflash` and `dspark`, as their authors publish them.

llama.cpp states the depths whose states are read, which are one more than the layers of config.json, pairs the halves
of a head, and does not mask within the block unless a key states it. In its format a DSpark drafter is a DFlash drafter
with a Markov head.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specchat.engine.drafters.published.find import GGUF_BLOCKS
from specchat.engine.drafters.published.weights import require
from specchat.engine.errors import EngineError
from specchat.engine.models.gguf.blocks import dequantized_rows
from specchat.engine.models.gguf.header import GgufHeader

_NAMES = {
    "fc": "fc", "enc.output_norm": "hidden_norm", "output_norm": "norm", "output": "lm_head",
    "token_embd": "embed_tokens", "markov_w1": "markov_head.markov_w1", "markov_w2": "markov_head.markov_w2",
    "conf_proj": "confidence_head.proj", "selector_hidden": "candidate_selector.hidden_projection",
}  # fmt: skip
_CODEBOOKS = {"selector_predecessor": "predecessor", "selector_successor": "successor"}
_LAYER_NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "attn_conv_proj": "attention_conv.kernel_projection",
    "ffn_conv_proj": "mlp_conv.kernel_projection",
}  # fmt: skip
_KERNELS = {"attn_conv_base": "attention_conv.base_kernel", "ffn_conv_base": "mlp_conv.base_kernel"}
_LAYER = re.compile(r"blk\.(\d+)\.(.+?)(\.weight|\.bias)?")
_TO_TARGET = "d2t"
_WHOLE = {"I32": "<i4", "I64": "<i8"}
"""Types of whole numbers."""


def read_gguf(path: Path, vocabulary: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json of a drafter and its tensors by their published names.

    Args:
        path: of the file.
        vocabulary: V of the target, for files that do not state it.

    Raises:
        EngineError: the file cannot be read.
        UnfitError: it is a drafter of another architecture.
    """
    header = GgufHeader.read(path)
    require(
        header.architecture in GGUF_BLOCKS,
        f"is a drafter of llama.cpp's architecture {header.architecture}, which is not supported as a GGUF file: give "
        "the folder or hub id of its safetensors",
    )
    tensors = {_published(name): _values(header, name) for name in header.tensors}
    if (known := tensors.get(_TO_TARGET)) is not None:  # the tokens themselves
        tensors[_TO_TARGET] = known.long() - torch.arange(len(known))
    return _config(header, vocabulary, len(known) if known is not None else None), tensors


def _published(name: str) -> str:
    """The published name of a tensor; its own if it is unknown."""
    if found := _LAYER.fullmatch(name):
        layer, part, suffix = found[1], found[2], found[3] or ""
        ours = f"{_LAYER_NAMES[part]}{suffix}" if part in _LAYER_NAMES else _KERNELS.get(part)
        return f"layers.{layer}.{ours}" if ours else name
    stem, _, suffix = name.rpartition(".")
    if stem in _CODEBOOKS:
        return f"candidate_selector.{_CODEBOOKS[stem]}_codebook"
    return f"{_NAMES[stem]}.{suffix}" if stem in _NAMES else name


def _values(header: GgufHeader, name: str) -> Tensor:
    tensor = header.tensors[name]
    if tensor.type in _WHOLE:
        whole = np.memmap(header.path, _WHOLE[tensor.type], "r", tensor.offset, tensor.elements)
        return torch.from_numpy(np.array(whole))
    try:
        rows = dequantized_rows(header, tensor, np.arange(tensor.elements // tensor.shape[0]))
    except (KeyError, NotImplementedError, ValueError):
        raise EngineError(
            f"{header.path} has {name} as {tensor.type}, which cannot be read: choose another file"
        ) from None
    return torch.from_numpy(np.ascontiguousarray(rows)).view(*reversed(tensor.shape))


def _config(header: GgufHeader, vocabulary: int, drafted: int | None) -> dict[str, Any]:
    """What config.json would state."""
    window = header.setting("attention.sliding_window", 0)
    sliding = header.setting("attention.sliding_window_pattern", []) if window else []
    layers = header.setting("block_count")
    scaling = header.setting("rope.scaling.type", "none")
    rotary: dict[str, Any] = {"rope_theta": header.setting("rope.freq_base", 10000.0), "rope_type": "default"}
    if scaling != "none":
        rotary |= {"rope_type": scaling, "factor": header.setting("rope.scaling.factor")}
        rotary["original_max_position_embeddings"] = header.setting("rope.scaling.original_context_length")
    size = header.setting("attention.key_length", None)
    if size and (turned := header.setting("rope.dimension_count", size)) != size:
        rotary["partial_rotary_factor"] = turned / size
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    special = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k", "sample_from_anchor")
    return {
        "hidden_size": header.setting("embedding_length"),
        "intermediate_size": header.setting("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": header.setting("attention.head_count"),
        "num_key_value_heads": header.setting("attention.head_count_kv"),
        "head_dim": size,
        "rms_norm_eps": header.setting("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": header.setting("context_length", 2048),
        "rope_parameters": rotary,
        "vocab_size": len(tokens) if tokens else vocabulary,
        "draft_vocab_size": drafted,
        "target_hidden_size": header.setting("target_hidden_size", None),
        "sliding_window": window or None,
        "layer_types": ["sliding_attention" if each else "full_attention" for each in sliding] or None,
        "is_causal": header.setting("attention.causal", False),
        "dflash_config": {
            "block_size": header.setting("block_size"),
            "mask_token_id": header.metadata.get("tokenizer.ggml.mask_token_id"),
            "target_layer_ids": [depth - 1 for depth in header.setting("target_layers")],
            "final_logit_softcapping": header.setting("final_logit_softcapping", None),
            "output_multiplier": header.setting("logit_scale", None),
            "input_embedding_scale": header.setting("embedding_scale", None),
            "attention_value_scale": header.setting("attention.value_scale", None),
            **{name: header.setting(name, None) for name in special},
        },
    }
