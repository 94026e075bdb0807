"""Models with the configurations that their authors publish: what the kernels are told of them."""

from typing import Any

import pytest
from transformers import AutoConfig

from specchat.engine.kernels.decoder_shape import LayerShape
from specchat.engine.models.packed.decoder_description import describe_decoder

_GEMMA4_26B = {
    "hidden_size": 2816, "num_hidden_layers": 30, "num_attention_heads": 16, "num_key_value_heads": 8,
    "num_global_key_value_heads": 2, "head_dim": 256, "global_head_dim": 512, "attention_k_eq_v": True,
    "enable_moe_block": True, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704,
    "intermediate_size": 2112, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
}  # fmt: skip
_LFM2_8B = {"num_hidden_layers": 24, "layer_types": ["conv", "conv", "full_attention", "conv"] * 6}


@pytest.mark.parametrize(
    ("kind", "stated", "layer", "shape"),
    [
        ("qwen3_5_moe_text", {}, LayerShape(2, 256, 512), {"experts": 256, "experts_per_token": 8, "expert_size": 512}),
        (
            "gemma4_text",
            _GEMMA4_26B,
            LayerShape(2, 512, 2112, values_are_keys=True),
            {"experts": 128, "experts_per_token": 8, "expert_size": 704, "normalise_experts": True},
        ),
        ("lfm2_moe", _LFM2_8B, LayerShape(8, 64, 7168), {"experts": 32, "expert_size": 1792, "sigmoid_experts": True}),
        ("ministral3", {}, LayerShape(8, 128, 14336), {"experts": 0}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_published_configuration_is_described(
    kind: str, stated: dict[str, Any], layer: LayerShape, shape: dict[str, Any]
) -> None:
    described = describe_decoder(AutoConfig.for_model(kind, **stated))
    assert described.layer_shape(5) == layer
    assert {name: getattr(described.shape, name) for name in shape} == shape
    assert described.rotaries[0].query_growth == (0.1 if kind == "ministral3" else 0.0)
