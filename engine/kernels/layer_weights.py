"""Weights of a decoder's layers, and of what all of them read besides their own input."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specchat.engine.kernels.decoder_shape import LayerShape
from specchat.engine.kernels.packed_matrix import PackedMatrix

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False, slots=True)
class LayerWeights:
    """One layer with attention, a short convolution or a gated delta net: packed matrices, float32 norms and biases."""

    shape: LayerShape
    query: PackedMatrix
    """Of a short convolution: [3 x hidden, hidden], gate of its input, gate of its output and its input.
    Of a delta net: [channels, hidden], queries, keys and values."""
    key: PackedMatrix | None
    """Of a delta net: [value heads, hidden], to beta, and `value` to the decay."""
    value: PackedMatrix | None
    output: PackedMatrix
    gate: PackedMatrix
    up: PackedMatrix
    down: PackedMatrix
    attention_norm: Floats
    """[hidden], before attention; the factors themselves, so 1 + w for Gemma."""
    mlp_norm: Floats
    """[hidden], before the MLP."""
    attention_out_norm: Floats | None = None
    """[hidden], of the attention output before the residual addition."""
    mlp_out_norm: Floats | None = None
    """[hidden], of the MLP output before the residual addition."""
    query_norm: Floats | None = None
    """[head_size], of every query head."""
    key_norm: Floats | None = None
    query_bias: Floats | None = None
    key_bias: Floats | None = None
    value_bias: Floats | None = None
    output_bias: Floats | None = None
    window: int = 0
    """Sliding window: positions that a token sees, itself included; 0 for all."""
    rope: int = 0
    """Index of its rotary table."""
    convolution: Floats | None = None
    """[taps, channels], the oldest input first; only of recurrent layers."""
    convolution_bias: Floats | None = None
    router: PackedMatrix | None = None
    """[experts, hidden] of a mixture of experts; gate, up and down are those of all experts, one after the other."""
    router_bias: Floats | None = None
    gate_bias: Floats | None = None
    up_bias: Floats | None = None
    down_bias: Floats | None = None
    sinks: Floats | None = None
    """[heads], a score of each head that takes its share of the softmax and has no value."""
    scale: float = 1.0
    """Factor on its output."""
    value_norm: Floats | None = None
    """[head_size], of every value head."""
    input_gate: PackedMatrix | None = None
    """[inputs, hidden]; with the next two, what the layer makes of its inputs (`LayerInputs`)."""
    input_projection: PackedMatrix | None = None
    """[hidden, inputs]"""
    input_norm: Floats | None = None
    """[hidden]"""
    mixer_gate: PackedMatrix | None = None
    """Gate of what `output` reads: [query rows, hidden] of attention, [value size, hidden] of a delta net."""
    decay_rate: Floats | None = None
    """[value heads] of a delta net: decay = exp(rate x softplus(input + bias))."""
    decay_bias: Floats | None = None
    delta_norm: Floats | None = None
    """[size of a value head], of every head of a delta net's output."""

    @property
    def is_recurrent(self) -> bool:
        """Whether it has a short convolution or a delta net in the place of attention."""
        return self.convolution is not None


@dataclass(frozen=True, eq=False, slots=True)
class LayerInputs:
    """Inputs of every layer besides the output of the one before, of each token (per-layer embeddings of Gemma 4).

    They are norm(projection x embedding / √hidden) + scale x row of `embedding`, as [layers, inputs].
    """

    embedding: PackedMatrix
    """[vocabulary, layers x inputs]"""
    projection: PackedMatrix
    """[layers x inputs, hidden]"""
    norm: Floats
    """[inputs]"""
    scale: float
