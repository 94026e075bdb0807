"""Which tensor of a GGUF file is which weight of transformers' modelling code."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3")
"""llama.cpp's names of those whose tensors are known here."""
_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output.weight": "lm_head.weight",
    "output_norm.weight": "model.norm.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OF_GEMMA = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_OF_PHI = {"ffn_up": "mlp.gate_up_proj"}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def transformers_name(architecture: str, name: str) -> str | None:
    """The name in a state dict of transformers; None of a tensor that is no weight (a table of rope factors)."""
    if name in _WHOLE:
        return _WHOLE[name]
    found = _LAYER.fullmatch(name)
    if found is None:
        return None
    layer, part, kind = found.groups()
    parts = _IN_LAYER
    if architecture.startswith("gemma"):
        parts = _IN_LAYER | _OF_GEMMA
    elif architecture == "phi3":
        parts = _IN_LAYER | _OF_PHI
    return f"model.layers.{layer}.{parts[part]}.{kind}" if part in parts else None


def half_order(rows: int, heads: int) -> NDArray[np.int64]:
    """The rows of a query or key projection in the order that rotates two halves.

    llama.cpp stores those of Llama models so that neighbouring rows are a pair; transformers turns row d with row
    d + size / 2 of a head.
    """
    order: NDArray[np.int64] = np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).ravel()
    return order
