"""Weights of a decoder's layers, and of what all of them read besides their own input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specchat.engine.kernels.decoder_shape import DecoderShape, LayerShape
from specchat.engine.kernels.library import KernelError
from specchat.engine.kernels.packed_matrix import PackedMatrix

Floats = NDArray[np.float32]
Shapes = dict[str, tuple[int, ...]]

_REQUIRED = {"query", "output", "gate", "up", "down", "attention_norm", "mlp_norm"}
_MAY_HAVE_BIAS = ("query", "key", "value", "output", "gate", "up", "down", "router")


@dataclass(frozen=True, eq=False, slots=True)
class LayerWeights:
    """One layer with attention, a short convolution, a gated delta net or a state space model."""

    shape: LayerShape
    parts: Mapping[str, PackedMatrix | Floats]
    """Packed matrices, and float32 norms and biases, by their names in `sk_layer` of api.h, which describes them;
    without the ones that the layer does not have. Norms are the factors themselves, so 1 + w for Gemma."""
    window: int = 0
    """Sliding window: positions that a token sees, itself included; 0 for all."""
    rope: int = 0
    """Index of its rotary table."""
    scale: float = 1.0
    """Factor on its output."""
    sees_later: bool = False
    """Whether a token sees the later tokens of its text in the same pass."""

    @property
    def is_recurrent(self) -> bool:
        """Whether it has a short convolution, a delta net or a state space model in the place of attention."""
        return "convolution" in self.parts

    def check(self, decoder: DecoderShape, inputs: int) -> None:
        """Check the shapes of all parts.

        Args:
            decoder: sizes of the decoder.
            inputs: size of the layer's further input (`LayerInputs`); 0 if it has none.

        Raises:
            KernelError: a part is missing, or has another shape.
        """
        if missing := _REQUIRED - self.parts.keys():
            raise KernelError(f"{', '.join(sorted(missing))} is missing")
        if decoder.heads % self.shape.key_heads:
            raise KernelError(f"{decoder.heads} query heads cannot share {self.shape.key_heads} key heads")
        expected = self._expected(decoder, inputs)
        for name, part in self.parts.items():
            if part.shape != (wanted := expected.get(name, ())):
                raise KernelError(f"{name} has the shape {list(part.shape)} and not {list(wanted)}")

    def _expected(self, decoder: DecoderShape, inputs: int) -> Shapes:
        """Shapes of all parts that a layer may have."""
        sizes, hidden, inner = self.shape, decoder.hidden, self.shape.intermediate
        queries, keys = decoder.heads * sizes.head_size, sizes.key_heads * sizes.head_size
        expected: Shapes = {
            "query": (queries, hidden),
            **dict.fromkeys(("key", "value"), (keys, hidden)),
            "output": (hidden, queries),
            **dict.fromkeys(("gate", "up"), (inner, hidden)),
            "down": (hidden, inner),
            **dict.fromkeys(("attention_norm", "mlp_norm", "attention_out_norm", "mlp_out_norm"), (hidden,)),
            **dict.fromkeys(("query_norm", "key_norm", "value_norm"), (sizes.head_size,)),
            "sinks": (decoder.heads,),
            "convolution": (decoder.taps, decoder.channels),
            "convolution_bias": (decoder.channels,),
            "mixer_gate": (queries, hidden),
            "input_gate": (inputs, hidden),
            "input_projection": (hidden, inputs),
            "input_norm": (hidden,),
            **dict.fromkeys(("attention_conv", "mlp_conv"), (2 * decoder.taps * decoder.conv_groups, hidden)),
            **dict.fromkeys(("attention_conv_base", "mlp_conv_base"), (2, decoder.taps, hidden)),
        }
        if self.is_recurrent:
            expected |= _recurrent_shapes(decoder, state_space="skip" in self.parts)
        if "router" in self.parts:
            expected["router"] = (decoder.experts, hidden)
            expected |= dict.fromkeys(("gate", "up"), (decoder.experts * decoder.expert_size, hidden))
            expected["down"] = (decoder.experts * hidden, decoder.expert_size)
            expected |= dict.fromkeys(("shared_gate", "shared_up"), (inner, hidden))
            expected |= {"shared_down": (hidden, inner), "shared_router": (1, hidden)}
            expected |= dict.fromkeys(("router_norm", "shared_norm", "shared_out_norm", "experts_out_norm"), (hidden,))
            expected |= dict.fromkeys(("choice_bias", "expert_scale"), (decoder.experts,))
        return expected | {f"{name}_bias": expected[name][:1] for name in _MAY_HAVE_BIAS if name in expected}


def _recurrent_shapes(decoder: DecoderShape, *, state_space: bool) -> Shapes:
    """Shapes of the parts in which a recurrent layer differs from attention."""
    hidden, heads, (_, values) = decoder.hidden, (decoder.delta_value_heads,), decoder.delta_widths
    if not decoder.delta_value_heads:
        return {"query": (3 * hidden, hidden), "output": (hidden, hidden)}
    return {
        "query": (decoder.channels, hidden),
        **dict.fromkeys(("key", "value"), (*heads, hidden)),
        "mixer_gate": (values, hidden),
        "output": (hidden, values),
        **dict.fromkeys(("decay_rate", "decay_bias", "skip"), heads),
        "delta_norm": (values if state_space else decoder.delta_value_size,),
    }


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
