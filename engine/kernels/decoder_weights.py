"""Weights of a decoder and its layers: shapes are checked, and arrays are kept alive for the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specchat.engine.kernels.decoder_shape import DecoderShape, LayerShape, check_shape
from specchat.engine.kernels.library import KernelError
from specchat.engine.kernels.packed_matrix import PackedMatrix
from specchat.engine.kernels.structures import CLayer, CModel, CRope

Floats = NDArray[np.float32]
_OF_LAYERS = ("activation", "key_heads", "head_size", "intermediate")
"""Fields of `DecoderShape` that `sk_model` has not, or not as such."""
_ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "clamped_swish": 3}
"""Their numbers in the kernels."""
_PANEL = 16
"""Rows of a matrix that the kernels compute together."""
_MOST_TAPS = 16
_WITH_BIAS = ("query", "key", "value", "output", "gate", "up", "down", "router")
"""Matrices of a layer that may have a bias."""


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


class DecoderWeights:
    """All weights of a decoder.

    Args:
        shape: sizes and constants.
        layers: in order.
        embedding: [any vocabulary, hidden].
        output: [vocabulary, hidden]; the embedding if they are tied.
        final_norm: [hidden].
        ropes: cosines and sines [positions, pairs] of each rotary table; dimensions d and d + pairs are a pair.
        inputs: of every layer, if they have any.
        clusters: [n, hidden], scores clusters of output rows, n equal stretches; None where all tokens are scored.

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
        inputs: LayerInputs | None = None,
        clusters: PackedMatrix | None = None,
    ) -> None:
        _check_weights(shape, layers, embedding, output, ropes, inputs)
        if clusters is not None:
            _check_clusters(shape, clusters)
        self.shape = shape
        self.layers = tuple(layers)
        self.embedding, self.output, self.inputs, self.clusters = embedding, output, inputs, clusters
        self._kept: list[Any] = []
        c_layers = (CLayer * len(layers))(*(self._c_layer(i, each) for i, each in enumerate(layers)))
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
            **{f.name: getattr(shape, f.name) for f in fields(shape) if f.name not in _OF_LAYERS},
            **self._c_inputs(inputs),
            **({} if clusters is None else {"clusters": clusters.c}),
        )
        """`sk_model`; valid while this object lives."""

    def _c_layer(self, index: int, layer: LayerWeights) -> CLayer:
        shape = layer.shape
        parts: dict[str, Any] = {"mixer": layer.is_recurrent + (layer.decay_rate is not None)}
        parts |= {"key_heads": shape.key_heads, "head_size": shape.head_size}
        parts["source"] = index if shape.source is None else shape.source
        for field in fields(layer):
            part = getattr(layer, field.name)
            if isinstance(part, PackedMatrix):
                part = part.c
            elif isinstance(part, np.ndarray):
                part = self._keep(part)
            if part is not None and field.name != "shape":
                parts[field.name] = part
        return CLayer(**parts)

    def _c_inputs(self, inputs: LayerInputs | None) -> dict[str, Any]:
        if inputs is None:
            return {}
        return {
            "inputs_embedding": inputs.embedding.c,
            "inputs_projection": inputs.projection.c,
            "inputs_norm": self._keep(inputs.norm),
            "inputs": len(inputs.norm),
            "inputs_scale": inputs.scale,
        }

    def _keep(self, array: Floats) -> int:
        """Address of the values as float32, kept alive by this object."""
        plain = np.ascontiguousarray(array, dtype=np.float32)
        self._kept.append(plain)
        return int(plain.ctypes.data)


def _check_weights(
    shape: DecoderShape,
    layers: Sequence[LayerWeights],
    embedding: PackedMatrix,
    output: PackedMatrix,
    ropes: Sequence[tuple[Floats, Floats]],
    inputs: LayerInputs | None,
) -> None:
    """Check all sizes against each other."""
    if shape.activation not in _ACTIVATIONS:
        raise KernelError(f"activation {shape.activation!r} is not known: choose one of {', '.join(_ACTIVATIONS)}")
    if shape.taps > _MOST_TAPS:
        raise KernelError(f"the kernels have convolutions over up to {_MOST_TAPS} inputs, not {shape.taps}")
    check_shape(shape, [layer.shape for layer in layers])
    width = 0 if inputs is None else len(inputs.norm)
    for i, layer in enumerate(layers):
        if not 0 <= layer.rope < len(ropes):
            raise KernelError(f"layer {i}: there is no rotary table {layer.rope}")
        sizes = layer.shape
        _check_heads(shape, sizes, ropes[layer.rope])
        for name, size in _expected(shape, sizes, layer, width).items():
            part = getattr(layer, name)
            if part is not None and part.shape != size:
                raise KernelError(f"layer {i}: {name} has the shape {list(part.shape)} and not {list(size)}")
        if sizes.source is not None and (layer.key or layers[sizes.source].shape.cached != sizes.read):
            raise KernelError(f"layer {i} cannot attend to the keys of layer {sizes.source}")
    if (output.rows, output.columns) != (shape.vocabulary, shape.hidden):
        raise KernelError(f"the output is {output.rows} x {output.columns}, which is not vocabulary x hidden")
    if embedding.columns != shape.hidden:
        raise KernelError(f"the embedding has {embedding.columns} columns, and the hidden size is {shape.hidden}")
    if inputs is not None and (
        width % 16
        or inputs.embedding.columns != len(layers) * width
        or inputs.projection.shape != (len(layers) * width, shape.hidden)
    ):
        raise KernelError(f"the inputs of {len(layers)} layers must be of one size, a multiple of 16, and not {width}")


def _check_clusters(shape: DecoderShape, clusters: PackedMatrix) -> None:
    """Check that the vocabulary is made of clusters."""
    if clusters.columns != shape.hidden or shape.vocabulary % (clusters.rows * _PANEL):
        raise KernelError(f"{clusters.rows} x {clusters.columns} is not clusters of {_PANEL}s of tokens x hidden")
    if not 0 < shape.clusters_scored <= clusters.rows:
        raise KernelError(f"{shape.clusters_scored} of {clusters.rows} clusters cannot be scored")


def _check_heads(shape: DecoderShape, sizes: LayerShape, rope: tuple[Floats, Floats]) -> None:
    """Check the heads of a layer, and its rotary table."""
    if shape.heads % sizes.key_heads:
        raise KernelError(f"{shape.heads} query heads cannot share {sizes.key_heads} key heads")
    cosines, sines = rope
    if cosines.shape != sines.shape or cosines.ndim != 2 or 2 * cosines.shape[1] > sizes.head_size:
        raise KernelError("a rotary table must be [positions, pairs], with at most half the head size of pairs")


def _expected(shape: DecoderShape, sizes: LayerShape, layer: LayerWeights, inputs: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the parts of a layer."""
    queries, keys, hidden, inner = (
        shape.heads * sizes.head_size,
        sizes.key_heads * sizes.head_size,
        shape.hidden,
        sizes.intermediate,
    )
    wanted: dict[str, tuple[int, ...]] = {
        "query": (queries, hidden),
        "key": (keys, hidden),
        "value": (keys, hidden),
        "output": (hidden, queries),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
        **dict.fromkeys(("attention_norm", "mlp_norm", "attention_out_norm", "mlp_out_norm"), (hidden,)),
        **dict.fromkeys(("query_norm", "key_norm", "value_norm"), (sizes.head_size,)),
        "sinks": (shape.heads,),
        "convolution": (shape.taps, shape.channels),
        "convolution_bias": (shape.channels,),
        "mixer_gate": (queries, hidden),
        "input_gate": (inputs, hidden),
        "input_projection": (hidden, inputs),
        "input_norm": (hidden,),
    }
    experts = {
        "router": (shape.experts, hidden),
        **dict.fromkeys(("gate", "up"), (shape.experts * shape.expert_size, hidden)),
        "down": (shape.experts * hidden, shape.expert_size),
    }
    expected = wanted | _recurrent_shapes(shape) if layer.is_recurrent else wanted
    expected = expected if layer.router is None else expected | experts
    return expected | {f"{name}_bias": size[:1] for name, size in expected.items() if name in _WITH_BIAS}


def _recurrent_shapes(shape: DecoderShape) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights of a recurrent layer that are not those of attention."""
    if not shape.delta_value_heads:
        return {
            "query": (3 * shape.hidden, shape.hidden),
            "query_bias": (3 * shape.hidden,),
            "output": (shape.hidden,) * 2,
        }
    heads, (_, values) = (shape.delta_value_heads,), shape.delta_widths
    return {
        "query": (shape.channels, shape.hidden),
        **dict.fromkeys(("key", "value"), (*heads, shape.hidden)),
        "mixer_gate": (values, shape.hidden),
        "output": (shape.hidden, values),
        **dict.fromkeys(("decay_rate", "decay_bias"), heads),
        "delta_norm": (shape.delta_value_size,),
    }
