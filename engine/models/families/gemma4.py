"""Gemma 4: layers of two sizes, the last of which attend to keys and values of earlier ones.

In the 26B-A4B model the MLP of a layer runs next to a mixture of experts, as the expert that all tokens share.
"""

from __future__ import annotations

from typing import Any

from specchat.engine.kernels.decoder_shape import LayerShape
from specchat.engine.models.family import Family, Settings, experts, has_tensor, layer_types
from specchat.engine.models.gguf.header import GgufHeader
from specchat.engine.models.gguf.rope import TABLE, float32_table, rope_parameters


def _settings(header: GgufHeader) -> Settings:
    types, inner = layer_types(header, 6), header.setting("feed_forward_length")
    key_heads, table = header.setting("attention.head_count_kv"), float32_table(header, TABLE)
    of_type = dict(zip(types, key_heads if isinstance(key_heads, list) else [key_heads] * len(types), strict=True))
    full = rope_parameters(header, read_table=False) | {
        "rope_type": "proportional",
        "partial_rotary_factor": float((table == 1.0).mean()),
    }
    sliding = {"rope_type": "default", "rope_theta": header.setting("rope.freq_base_swa", 10_000.0)}
    own = types[: len(types) - header.setting("attention.shared_kv_layers", 0)]
    values = has_tensor(header, "attn_v.weight")
    per_layer = header.tensors.get("per_layer_token_embd.weight")
    return {
        "head_dim": header.setting("attention.key_length_swa"),
        "global_head_dim": header.setting("attention.key_length"),
        "num_key_value_heads": of_type.get("sliding_attention", max(of_type.values())),
        "num_global_key_value_heads": of_type.get("full_attention"),
        "attention_k_eq_v": not all(values[layer] for layer in range(len(own))),
        "num_kv_shared_layers": len(types) - len(own),
        "layer_types": types,
        "sliding_window": header.setting("attention.sliding_window"),
        "rope_parameters": {"full_attention": full, "sliding_attention": sliding},
        "intermediate_size": min(inner) if isinstance(inner, list) else inner,
        "use_double_wide_mlp": isinstance(inner, list) and max(inner) > min(inner),
        "hidden_size_per_layer_input": header.setting("embedding_length_per_layer_input", 0),
        **({"vocab_size_per_layer_input": per_layer.shape[1]} if per_layer else {}),
        "final_logit_softcapping": header.setting("final_logit_softcapping", None),
        **(_experts(header) if header.setting("expert_count", 0) else {}),
    }


def _experts(header: GgufHeader) -> Settings:
    stated = experts(header)
    return stated | {"enable_moe_block": True, "top_k_experts": stated.pop("num_experts_per_tok")}


def _shape(config: Any, _: Any) -> Settings:
    scales = {"attention_scale": 1.0, "embedding_scale": config.hidden_size**0.5}
    mixture = getattr(config, "enable_moe_block", False)
    return scales | ({"experts_per_token": config.top_k_experts} if mixture else {})


def _layer_shapes(config: Any, network: Any) -> tuple[LayerShape, ...]:
    """Sizes of the layers; the last ones attend to the keys of the last earlier layer of their type."""
    shapes: list[LayerShape] = []
    caching: dict[str, int] = {}
    for layer, kind in zip(network.layers, config.layer_types, strict=True):
        attention = layer.self_attn
        shares = attention.is_kv_shared_layer
        if not shares:
            caching[kind] = len(shapes)
        shapes.append(
            LayerShape(
                key_heads=config.num_attention_heads // attention.num_key_value_groups,
                head_size=attention.head_dim,
                intermediate=layer.mlp.intermediate_size,
                source=caching[kind] if shares else None,
                values_are_keys=attention.use_alternative_attention,
            )
        )
    return tuple(shapes)


FAMILIES = (
    Family(
        types=("gemma4_text", "gemma4_unified_text", "gemma4", "gemma4_unified"),
        overflows=True,
        assistants=("gemma4_assistant", "gemma4_unified_assistant"),
        architecture="gemma4",
        settings=_settings,
        mixture=True,
        shape=_shape,
        layer_shapes=_layer_shapes,
        names={
            "mlp.shared_expert.": "mlp.",
            "mlp.experts.": "experts.",
            "mlp.gate_proj": "mlp.gate_proj",  # in dense models, which have no `mlp.gate`
            "mlp.gate": "router.proj",
        },
        out_norms=True,
        head_norms=True,
        value_norm=True,
    ),
)
