"""Phi-3."""

from __future__ import annotations

from specchat.engine.models.family import Family, Settings, head_size
from specchat.engine.models.gguf.header import GgufHeader
from specchat.engine.models.gguf.rope import rope_parameters


def _settings(header: GgufHeader) -> Settings:
    size, rope = head_size(header), rope_parameters(header)
    share = header.setting("rope.dimension_count", size) / size
    original = {name: value for name, value in rope.items() if name == "original_max_position_embeddings"}
    return original | {
        "rope_parameters": rope | ({} if share == 1 else {"partial_rotary_factor": share}),
        "sliding_window": header.setting("attention.sliding_window", 0) or None,
    }


FAMILIES = (Family(types=("phi3",), architecture="phi3", settings=_settings, fused=True, drops_spaces=True),)
