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

_ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "clamped_swish": 3}
_PANEL = 16
"""Rows of a matrix that the kernels compute together."""
_LARGEST_HEAD, _MOST_TAPS, _MOST_EXPERTS = 512, 16, 1024
_WITH_BIAS = ("query", "key", "value", "output", "gate", "up", "down", "router")
"""Matrices of a layer that may have a bias."""
_OF_LAYERS = ("activation", "key_heads", "head_size", "intermediate")
"""Fields of `DecoderShape` that `sk_model` has not, or not as such."""
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Sizes of a layer."""

    key_heads: int
    head_size: int
    intermediate: int
    """Of its MLP; unused by mixtures of experts."""
    source: int | None = None
    """Earlier layer whose keys and values it attends to, if it has none itself."""
    values_are_keys: bool = False
    """Whether its values are the keys, before their norm and rotary embedding."""

    @property
    def cached(self) -> tuple[int, int]:
        """Heads and head size of its keys and values in the cache."""
        return self.read if self.source is None else (0, 0)

    @property
    def read(self) -> tuple[int, int]:
        """Heads and head size of the keys and values that it attends to."""
        return self.key_heads, self.head_size


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Sizes and constants of a decoder."""

    hidden: int
    heads: int
    key_heads: int
    """This, `head_size` and `intermediate` are those of layers without a shape of their own."""
    head_size: int
    intermediate: int
    vocabulary: int
    epsilon: float
    activation: str
    """`silu`, `gelu_tanh` or `clamped_swish`, that of gpt-oss."""
    attention_scale: float
    """Factor on the attention scores."""
    attention_cap: float = 0.0
    """c of c·tanh(score/c); 0 for none."""
    logit_cap: float = 0.0
    """The same for logits."""
    embedding_scale: float = 1.0
    taps: int = 0
    """Inputs that a convolution of a recurrent layer reads, the token's own included."""
    experts: int = 0
    """Number of experts of a mixture; 0 if every MLP is dense."""
    experts_per_token: int = 0
    expert_size: int = 0
    """Intermediate size of an expert."""
    normalise_experts: bool = False
    """Whether the weights of a token's experts are scaled to add up to 1."""
    clusters_scored: int = 0
    """Clusters of the vocabulary that a token gets logits of."""
    delta_key_heads: int = 0
    """Of gated delta nets; 0 if the recurrent layers are short convolutions."""
    delta_value_heads: int = 0
    delta_key_size: int = 0
    delta_value_size: int = 0

    @property
    def delta_widths(self) -> tuple[int, int]:
        """Sizes of the keys and of the values of all heads of a delta net."""
        return self.delta_key_heads * self.delta_key_size, self.delta_value_heads * self.delta_value_size

    @property
    def channels(self) -> int:
        """Of the convolution of a recurrent layer."""
        keys, values = self.delta_widths
        return 2 * keys + values if values else self.hidden

    @property
    def recurrent_sizes(self) -> tuple[int, int]:
        """Numbers that a token adds to what a recurrent layer knows, and numbers of its state."""
        keys, values = self.delta_widths
        return self.channels + keys + values + self.delta_value_heads, self.delta_key_size * values

    @property
    def layer(self) -> LayerShape:
        """Sizes of layers without a shape of their own."""
        return LayerShape(self.key_heads, self.head_size, self.intermediate)


@dataclass(frozen=True, eq=False, slots=True)
class LayerWeights:
    """One layer with attention, a short convolution or a gated delta net: packed matrices, float32 norms and biases."""

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
    shape: LayerShape | None = None
    """None for the sizes of `DecoderShape`."""
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
        _check(shape, layers, embedding, output, ropes, inputs)
        if clusters is not None:
            _check_clusters(shape, clusters)
        self.shape = shape
        self.layers = tuple(layers)
        self.embedding, self.output, self.inputs, self.clusters = embedding, output, inputs, clusters
        self._kept: list[Any] = []
        self.shaped = [(layer, layer.shape or shape.layer) for layer in layers]
        """Layers, with their sizes."""
        c_layers = (CLayer * len(layers))(*(self._c_layer(i, *each) for i, each in enumerate(self.shaped)))
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

    def _c_layer(self, index: int, layer: LayerWeights, shape: LayerShape) -> CLayer:
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


def check_experts(shape: DecoderShape) -> None:
    """Check that the kernels support the experts of a model.

    Raises:
        KernelError: they do not.
    """
    if not 0 < shape.experts_per_token <= shape.experts <= _MOST_EXPERTS or shape.expert_size % 16:
        raise KernelError(
            f"the quantised kernels need 1 to {_MOST_EXPERTS} experts of a size that is a multiple of 16 and no more "
            f"per token: this model has {shape.experts} of size {shape.expert_size}, {shape.experts_per_token} a token"
        )


def check_delta_net(shape: DecoderShape) -> None:
    """Check that the kernels support the gated delta nets of a model.

    Raises:
        KernelError: they do not.
    """
    heads, sizes = (shape.delta_value_heads, shape.delta_key_heads), (shape.delta_key_size, shape.delta_value_size)
    if heads[0] % heads[1] or any(size % 16 for size in sizes):
        raise KernelError(
            "the quantised kernels need delta nets whose heads have sizes that are multiples of 16 and share key heads "
            f"evenly: this model has {heads[1]} key heads of {sizes[0]} and {heads[0]} value heads of {sizes[1]}"
        )


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


def _check(
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
    if shape.experts:
        check_experts(shape)
    if shape.delta_value_heads:
        check_delta_net(shape)
    width = 0 if inputs is None else len(inputs.norm)
    for i, layer in enumerate(layers):
        if not 0 <= layer.rope < len(ropes):
            raise KernelError(f"layer {i}: there is no rotary table {layer.rope}")
        sizes = layer.shape or shape.layer
        _check_shape(shape, sizes, ropes[layer.rope])
        for name, size in _expected(shape, sizes, layer, width).items():
            part = getattr(layer, name)
            if part is not None and part.shape != size:
                raise KernelError(f"layer {i}: {name} has the shape {list(part.shape)} and not {list(size)}")
        if sizes.source is not None and (layer.key or (layers[sizes.source].shape or shape.layer).cached != sizes.read):
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


def _check_shape(shape: DecoderShape, sizes: LayerShape, rope: tuple[Floats, Floats]) -> None:
    """Check the sizes of a layer, and its rotary table."""
    check_sizes(shape.hidden, sizes.head_size, sizes.intermediate)
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
