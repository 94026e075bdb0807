"""Names of weights in a packed model, which are those of transformers' state dicts with fused matrices split."""

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
"""Matrices of a layer: part of `engine.kernels.layer_weights.LayerWeights` to name."""
ROUTER = "mlp.gate"
"""Its presence makes the MLP of a layer a mixture of experts."""
NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
    "self_attn.q_norm",
    "self_attn.k_norm",
    "post_per_layer_input_norm",
)
"""Norms of a layer; each family has some of them."""
SINKS = "self_attn.sinks"
"""Scores [heads] that take a share of the softmax and have no value."""
INPUTS = {"input_gate": "per_layer_input_gate", "input_projection": "per_layer_projection"}
"""Matrices of a layer that has inputs besides the output of the one before (Gemma 4)."""
INPUTS_EMBEDDING, INPUTS_PROJECTION, INPUTS_NORM = (
    f"model.{name}.weight"
    for name in ("embed_tokens_per_layer", "per_layer_model_projection", "per_layer_projection_norm")
)
"""Weights that compute these inputs."""
SCALE = "layer_scalar"
"""Factor [1] on the output of a layer."""
QUERY_GATE = "self_attn.gate_proj"
"""Gate of an attention's output, which the modelling code has in one matrix with the queries, head by head."""
CONVOLUTION = {"query": "conv.in_proj", "output": "conv.out_proj"}
"""Matrices of a recurrent layer in the place of those of attention."""
KERNEL = "conv.conv"
"""Weights of its convolution [channels, 1, taps], kept as a vector."""
DELTA_NET = {
    "key": "linear_attn.in_proj_b",
    "value": "linear_attn.in_proj_a",
    "mixer_gate": "linear_attn.in_proj_z",
}
DECAY_RATE, DECAY_BIAS, DELTA_NORM = "linear_attn.A_log", "linear_attn.dt_bias", "linear_attn.norm.weight"
"""Vectors of a delta net; the first is the logarithm of the rate."""
VECTORS = (SINKS, SCALE, DECAY_RATE, DECAY_BIAS, DELTA_NORM)
"""Vectors whose names have no suffix, and are the same in all families."""
UNQUANTIZED = tuple(f"{DELTA_NET[part]}.weight" for part in ("key", "value"))
"""Ends of the names of matrices besides routers with few weights that much depends on."""
