"""Weights of a decoder: shapes are checked, and arrays are kept alive for the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specchat.engine.kernels.library import KernelError
from specchat.engine.kernels.packed_matrix import PackedMatrix
from specchat.engine.kernels.structures import CLayer, CModel, CRope

_ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}
_LARGEST_HEAD = 512
MIXERS = {"full_attention": 0, "sliding_attention": 0, "conv": 1, "linear_attention": 2}
"""Layer types of transformers to `sk_mixer` of api.h."""
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Sizes and constants of a decoder."""

    hidden: int
    heads: int
    key_heads: int
    head_size: int
    intermediate: int
    vocabulary: int
    epsilon: float
    activation: str
    """`silu` or `gelu_tanh`."""
    attention_scale: float
    """Factor on the attention scores."""
    attention_cap: float = 0.0
    """c of c·tanh(score/c); 0 for none."""
    logit_cap: float = 0.0
    """The same for logits."""
    embedding_scale: float = 1.0
    state_key_heads: int = 0
    """Key heads of gated delta nets."""
    state_value_heads: int = 0
    state_key_size: int = 0
    """Per head."""
    state_value_size: int = 0
    convolution_size: int = 0
    """Inputs of a depthwise convolution."""


@dataclass(frozen=True, eq=False, slots=True)
class LayerWeights:
    """One layer: packed matrices, float32 norms and biases."""

    query: PackedMatrix
    """Recurrent layers: the input projection, of which the convolution reads a part."""
    output: PackedMatrix
    gate: PackedMatrix
    up: PackedMatrix
    down: PackedMatrix
    attention_norm: Floats
    """[hidden], before attention; the factors themselves, so 1 + w for Gemma."""
    mlp_norm: Floats
    """[hidden], before the MLP."""
    key: PackedMatrix | None = None
    """Delta nets: logits of beta."""
    value: PackedMatrix | None = None
    """Delta nets: inputs of the decay."""
    mix_gate: PackedMatrix | None = None
    """Gate of the output of attention or delta net."""
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
    mixer: int = 0
    """One of `MIXERS`."""
    convolution: Floats | None = None
    """[convolution_size, channels], oldest input first."""
    convolution_bias: Floats | None = None
    decay_rate: Floats | None = None
    """[value heads]: a delta net's decay is exp(rate x softplus(input + bias))."""
    decay_bias: Floats | None = None
    state_norm: Floats | None = None
    """[value size], of every head of a delta net's output."""


class DecoderWeights:
    """All weights of a decoder.

    Args:
        shape: sizes and constants.
        layers: in order.
        embedding: [any vocabulary, hidden].
        output: [vocabulary, hidden]; the embedding if they are tied.
        final_norm: [hidden].
        ropes: cosines and sines [positions, pairs] of each rotary table; dimensions d and d + pairs are a pair.

    Raises:
        KernelError: sizes do not match.
    """

    def __init__(
        self,
        shape: DecoderShape,
        layers: Sequence[LayerWeights],
        embedding: PackedMatrix,
        output: PackedMatrix,
        final_norm: Floats,
        ropes: Sequence[tuple[Floats, Floats]],
    ) -> None:
        _check(shape, layers, embedding, output, ropes)
        self.shape = shape
        self.layers = tuple(layers)
        self.embedding, self.output = embedding, output
        self._kept: list[Any] = []
        c_layers = (CLayer * len(layers))(*map(self._c_layer, layers))
        c_ropes = (CRope * len(ropes))(*(CRope(self._keep(c), self._keep(s), len(c), c.shape[1]) for c, s in ropes))
        self.c = CModel(
            layer_count=len(layers),
            activation=_ACTIVATIONS[shape.activation],
            rope_count=len(ropes),
            embedding=embedding.c,
            output=output.c,
            final_norm=self._keep(final_norm),
            layers=c_layers,
            ropes=c_ropes,
            **{f.name: getattr(shape, f.name) for f in fields(shape) if f.name != "activation"},
        )
        """`sk_model`; valid while this object lives."""

    def _c_layer(self, layer: LayerWeights) -> CLayer:
        parts: dict[str, Any] = {}
        for field in fields(layer):
            part = getattr(layer, field.name)
            if isinstance(part, PackedMatrix):
                part = part.c
            elif isinstance(part, np.ndarray):
                part = self._keep(part)
            if part is not None:
                parts[field.name] = part
        return CLayer(**parts)

    def _keep(self, array: Floats) -> int:
        """Address of the values as float32, kept alive by this object."""
        plain = np.ascontiguousarray(array, dtype=np.float32)
        self._kept.append(plain)
        return int(plain.ctypes.data)


def check_sizes(hidden: int, head_size: int, intermediate: int) -> None:
    """Check that the kernels support these sizes.

    Raises:
        KernelError: they do not.
    """
    if hidden % 16 or head_size % 16 or head_size > _LARGEST_HEAD or intermediate % 16:
        raise KernelError(
            f"the quantised kernels need sizes that are multiples of 16 and heads up to {_LARGEST_HEAD}: this model "
            f"has hidden {hidden}, head {head_size}, intermediate {intermediate}"
        )


def _check(
    shape: DecoderShape,
    layers: Sequence[LayerWeights],
    embedding: PackedMatrix,
    output: PackedMatrix,
    ropes: Sequence[tuple[Floats, Floats]],
) -> None:
    """Check all sizes against each other."""
    if shape.activation not in _ACTIVATIONS:
        raise KernelError(f"activation {shape.activation!r} is not known: choose one of {', '.join(_ACTIVATIONS)}")
    check_sizes(shape.hidden, shape.head_size, shape.intermediate)
    if shape.heads % shape.key_heads:
        raise KernelError(f"{shape.heads} query heads cannot share {shape.key_heads} key heads")
    queries, keys, hidden, inner = (
        shape.heads * shape.head_size,
        shape.key_heads * shape.head_size,
        shape.hidden,
        shape.intermediate,
    )
    values = shape.state_value_heads * shape.state_value_size
    channels = 2 * shape.state_key_heads * shape.state_key_size + values
    heads = (shape.state_value_heads, hidden)
    mixers: list[dict[str, tuple[int, ...]]] = [
        {
            **dict.fromkeys(("query", "mix_gate"), (queries, hidden)),
            **dict.fromkeys(("key", "value"), (keys, hidden)),
            "output": (hidden, queries),
        },
        {"query": (3 * hidden, hidden), "output": (hidden, hidden), "convolution": (shape.convolution_size, hidden)},
        {
            "query": (channels, hidden),
            **dict.fromkeys(("key", "value"), heads),
            "mix_gate": (values, hidden),
            "output": (hidden, values),
            "convolution": (shape.convolution_size, channels),
            **dict.fromkeys(("decay_rate", "decay_bias"), heads[:1]),
            "state_norm": (shape.state_value_size,),
        },
    ]
    wanted: dict[str, tuple[int, ...]] = {
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
        **dict.fromkeys(("attention_norm", "mlp_norm", "attention_out_norm", "mlp_out_norm"), (hidden,)),
        **dict.fromkeys(("query_norm", "key_norm"), (shape.head_size,)),
        "key_bias": (keys,),
        "value_bias": (keys,),
        "output_bias": (hidden,),
    }
    for i, layer in enumerate(layers):
        for name, size in (wanted | mixers[layer.mixer]).items():
            part = getattr(layer, name)
            if part is not None and part.shape != size:
                raise KernelError(f"layer {i}: {name} has the shape {list(part.shape)} and not {list(size)}")
        if not 0 <= layer.rope < len(ropes):
            raise KernelError(f"layer {i}: there is no rotary table {layer.rope}")
    if (output.rows, output.columns) != (shape.vocabulary, shape.hidden):
        raise KernelError(f"the output is {output.rows} x {output.columns}, which is not vocabulary x hidden")
    if embedding.columns != shape.hidden:
        raise KernelError(f"the embedding has {embedding.columns} columns, and the hidden size is {shape.hidden}")
    for cosines, sines in ropes:
        if cosines.shape != sines.shape or cosines.ndim != 2 or 2 * cosines.shape[1] > shape.head_size:
            raise KernelError("a rotary table must be [positions, pairs], with at most half the head size of pairs")
