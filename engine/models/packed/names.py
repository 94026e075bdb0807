"""Names of weights in a packed model: as in transformers' state dicts, with fused matrices split."""

from __future__ import annotations

EMBEDDING, OUTPUT, FINAL_NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
MATRICES = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
"""Matrices of a layer: part of `engine.kernels.decoder_weights.LayerWeights` to name."""
ROUTER = "mlp.gate"
"""Its presence makes the MLP of a layer a mixture of experts."""
SHARED = {
    **{f"shared_{part}": MATRICES[part].replace("mlp.", "mlp.shared_expert.") for part in ("gate", "up", "down")},
    "shared_router": "mlp.shared_expert_gate",
}
"""Matrices of the expert of a mixture that all tokens use; families have none, all, or all but the last."""
LAYER_VECTORS = {
    "convolution_bias": "conv.conv.bias",
    "attention_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "mlp_in_norm": "pre_feedforward_layernorm.weight",
    "mlp_out_norm": "post_feedforward_layernorm.weight",
    "query_norm": "self_attn.q_norm.weight",
    "key_norm": "self_attn.k_norm.weight",
    "input_norm": "post_per_layer_input_norm.weight",
    "convolution": "conv.conv.weight",
    "sinks": "self_attn.sinks",
    "scale": "layer_scalar",
    "decay_rate": "linear_attn.A_log",
    "decay_bias": "linear_attn.dt_bias",
    "delta_norm": "linear_attn.norm.weight",
    "skip": "linear_attn.D",
    "choice_bias": "mlp.expert_bias",
    "expert_scale": "router.per_expert_scale",
    "router_norm": "router.scale",
    "experts_norm": "pre_feedforward_layernorm_2.weight",
    "experts_out_norm": "post_feedforward_layernorm_2.weight",
    "shared_out_norm": "post_feedforward_layernorm_1.weight",
}
"""Vectors of a layer by part of `LayerWeights`; each family has some of them.

With `mlp_in_norm`, `mlp_norm` is that of the output of attention. With `experts_norm`, the norm of the MLP is that of
the shared expert. `router_norm` is to be divided by √hidden. The kernel of a convolution [channels, 1, taps] is kept as
a vector, `scale` [1] is a factor on the output of the layer, `decay_rate` is a logarithm.
"""
KERNEL, DELTA_NORM = "conv.conv", LAYER_VECTORS["delta_norm"]
INPUTS = {"input_gate": "per_layer_input_gate", "input_projection": "per_layer_projection"}
"""Matrices of a layer that has inputs besides the output of the one before (Gemma 4)."""
INPUTS_EMBEDDING, INPUTS_PROJECTION, INPUTS_NORM = (
    f"model.{name}.weight"
    for name in ("embed_tokens_per_layer", "per_layer_model_projection", "per_layer_projection_norm")
)
"""Weights that compute these inputs."""
QUERY_GATE = "self_attn.gate_proj"
"""Gate of an attention's output, which the modelling code has in one matrix with the queries, head by head."""
CONVOLUTION = {"query": "conv.in_proj", "output": "conv.out_proj"}
"""Matrices of a recurrent layer in the place of attention's."""
DELTA_NET = {"key": "linear_attn.in_proj_b", "value": "linear_attn.in_proj_a", "mixer_gate": "linear_attn.in_proj_z"}
UNQUANTIZED = (DELTA_NET["key"], DELTA_NET["value"], ROUTER, SHARED["shared_router"])
"""Matrices with few weights that much depends on."""
