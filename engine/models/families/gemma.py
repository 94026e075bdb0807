"""Gemma 1 to 3."""

from __future__ import annotations

from typing import Any

from specchat.engine.models.family import Family, Settings, head_size, layer_count, layer_types
from specchat.engine.models.gguf.header import GgufHeader
from specchat.engine.models.gguf.rope import rope_parameters

_WIDE_SCALE = {"gemma2": 46, "gemma3": 62}
"""Layers of the 27B model, whose attention is scaled by hidden size / heads and not by the head size."""


def _attention(header: GgufHeader) -> Settings:
    size, hidden = head_size(header), header.setting("embedding_length")
    wide = layer_count(header) == _WIDE_SCALE[header.architecture]
    return {
        "head_dim": size,
        "query_pre_attn_scalar": hidden // header.setting("attention.head_count") if wide else size,
        "sliding_window": header.setting("attention.sliding_window"),
    }


def _gemma2(header: GgufHeader) -> Settings:
    return _attention(header) | {
        "attn_logit_softcapping": header.setting("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": header.setting("final_logit_softcapping", 30.0),
    }


def _gemma3(header: GgufHeader) -> Settings:
    sliding = {"rope_type": "default", "rope_theta": header.setting("rope.freq_base_swa", 10_000.0)}
    return _attention(header) | {
        "layer_types": layer_types(header, 6),
        "rope_parameters": {"full_attention": rope_parameters(header), "sliding_attention": sliding},
        "final_logit_softcapping": header.setting("final_logit_softcapping", None),
    }


def _shape(config: Any, _: Any) -> Settings:
    return {"attention_scale": config.query_pre_attn_scalar**-0.5, "embedding_scale": config.hidden_size**0.5}


_PACKED: dict[str, Any] = {"overflows": True, "shape": _shape, "norm_offset": 1.0, "out_norms": True}
FAMILIES = (
    Family(types=("gemma", "gemma3n_text", "gemma3n"), overflows=True, packed=False),
    Family(types=("gemma2",), architecture="gemma2", settings=_gemma2, **_PACKED),
    Family(types=("gemma3_text", "gemma3"), architecture="gemma3", settings=_gemma3, head_norms=True, **_PACKED),
)
