"""Granite: Llama's decoder with factors on embeddings, attention scores, residual additions and logits."""

from __future__ import annotations

from typing import Any

from specchat.engine.errors import check
from specchat.engine.models.families.llama import adjacent_pairs, llama_settings
from specchat.engine.models.family import Family, Settings, head_size
from specchat.engine.models.gguf.header import GgufHeader


def _factors(header: GgufHeader) -> Settings:
    return {  # 0 for none
        "embedding_multiplier": header.setting("embedding_scale", 0) or 1.0,
        "attention_multiplier": header.setting("attention.scale", 0) or head_size(header) ** -0.5,
        "residual_multiplier": header.setting("residual_scale", 0) or 1.0,
        "logits_scaling": header.setting("logit_scale", 0) or 1.0,
    }


def _dense(header: GgufHeader) -> Settings:
    rotates = header.setting("rope.scaling.finetuned", True)  # llama.cpp's switch
    check(rotates, f"{header.path} is a Granite model without rotary embedding: use the safetensors model")
    return llama_settings(header) | _factors(header)


def _shape(config: Any, _: Any) -> Settings:
    return {
        "embedding_scale": config.embedding_multiplier,
        "attention_scale": config.attention_multiplier,
        "residual_scale": config.residual_multiplier,
        "logit_scale": 1.0 / config.logits_scaling,
    }


def _lacks_factors(config: Any) -> bool:
    return not (config.residual_multiplier and config.logits_scaling)


FAMILIES = (
    Family(
        types=("granite",),
        architecture="granite",
        settings=_dense,
        orders=adjacent_pairs,
        unsupported=_lacks_factors,
        shape=_shape,
    ),
)
