"""Qwen 2 and 3."""

from __future__ import annotations

from specchat.engine.models.family import Family, Settings, attention_bias, experts, has_tensor, head_size
from specchat.engine.models.gguf.header import GgufHeader


def _qwen3(header: GgufHeader) -> Settings:
    return {"head_dim": head_size(header)} | attention_bias(header)


def _mixture(header: GgufHeader) -> Settings:
    routed = has_tensor(header, "ffn_gate_inp.weight")
    dense = {"norm_topk_prob": True, "mlp_only_layers": [layer for layer, mixture in enumerate(routed) if not mixture]}
    return _qwen3(header) | experts(header) | dense


FAMILIES = (
    Family(types=("qwen2",), architecture="qwen2"),
    Family(types=("qwen3",), architecture="qwen3", settings=_qwen3, head_norms=True),
    Family(types=("qwen3_moe",), architecture="qwen3moe", settings=_mixture, mixture=True, head_norms=True),
)
