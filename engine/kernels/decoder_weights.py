"""Weights of a decoder and of its layers: their shapes are checked, and arrays are kept alive for the kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specchat.engine.kernels.decoder_shape import DecoderShape, LayerShape, check_shape
from specchat.engine.kernels.library import CLayer, CModel, CRope, KernelError
from specchat.engine.kernels.packed_matrix import PANEL, PackedMatrix

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


_ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "clamped_swish": 3}
"""Values of `sk_activation`."""
_MOST_TAPS = 16
_NOT_IN_MODEL = ("activation", "key_heads", "head_size", "intermediate")
"""Fields of `DecoderShape` that `sk_model` lacks, or has in another form."""


class DecoderWeights:
    """All weights of a decoder.

    Args:
        shape: sizes and constants.
        layers: in order.
        embedding: [any vocabulary, hidden].
        output: [vocabulary, hidden]; the embedding if they are tied.
        final_norm: [hidden].
        ropes: cosines and sines [positions, pairs] of each rotary table, dimensions d and d + pairs being a pair, and
            factors [positions] on queries, if it has some.
        inputs: of every layer, if they have any.
        clusters: [n, hidden], scores clusters of output rows, n equal stretches; None where all tokens are scored.
        exact: the output layer itself, which scores the likeliest tokens again; None if `output` is no copy of it.

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
        ropes: Sequence[tuple[Floats, ...]],
        inputs: LayerInputs | None = None,
        clusters: PackedMatrix | None = None,
        exact: PackedMatrix | None = None,
    ) -> None:
        self.shape, self.layers = shape, tuple(layers)
        self.embedding, self.output, self.inputs = embedding, output, inputs
        self.clusters, self.exact = clusters, exact
        self._check(ropes)
        self._kept: list[Any] = []
        scorers = {"clusters": clusters, "exact": exact}
        more: dict[str, Any] = {name: matrix.c for name, matrix in scorers.items() if matrix is not None}
        if inputs is not None:
            more |= {
                "inputs_embedding": inputs.embedding.c,
                "inputs_projection": inputs.projection.c,
                "inputs_norm": self._keep(inputs.norm),
                "inputs": len(inputs.norm),
                "inputs_scale": inputs.scale,
            }
        self.c = CModel(
            layer_count=len(layers),
            activation=_ACTIVATIONS[shape.activation],
            rope_count=len(ropes),
            embedding=embedding.c,
            output=output.c,
            final_norm=self._keep(final_norm),
            layers=(CLayer * len(layers))(*(self._c_layer(i, each) for i, each in enumerate(layers))),
            ropes=(CRope * len(ropes))(
                *(CRope(self._keep(c), self._keep(s), *c.shape, *map(self._keep, more)) for c, s, *more in ropes)
            ),
            **{f.name: getattr(shape, f.name) for f in fields(shape) if f.name not in _NOT_IN_MODEL},
            **more,
        )
        """`sk_model`; valid while this object lives."""

    def _c_layer(self, index: int, layer: LayerWeights) -> CLayer:
        shape = layer.shape
        return CLayer(
            mixer=layer.is_recurrent + ("decay_rate" in layer.parts) + ("skip" in layer.parts),
            key_heads=shape.key_heads,
            head_size=shape.head_size,
            source=index if shape.source is None else shape.source,
            window=layer.window,
            rope=layer.rope,
            sees_later=layer.sees_later,
            scale=layer.scale,
            **{
                name: part.c if isinstance(part, PackedMatrix) else self._keep(part)
                for name, part in layer.parts.items()
            },
        )

    def _keep(self, array: Floats) -> int:
        """Address of the values as float32, kept alive by this object."""
        plain = np.ascontiguousarray(array, dtype=np.float32)
        self._kept.append(plain)
        return int(plain.ctypes.data)

    def _check(self, ropes: Sequence[tuple[Floats, ...]]) -> None:
        """Check all sizes against each other."""
        shape, inputs = self.shape, self.inputs
        if shape.activation not in _ACTIVATIONS:
            raise KernelError(f"activation {shape.activation!r} is not known: choose one of {', '.join(_ACTIVATIONS)}")
        if shape.taps > _MOST_TAPS:
            raise KernelError(f"the kernels have convolutions over up to {_MOST_TAPS} inputs, not {shape.taps}")
        check_shape(shape, [layer.shape for layer in self.layers])
        width, count = 0 if inputs is None else len(inputs.norm), len(self.layers)
        for i, layer in enumerate(self.layers):
            if not 0 <= layer.rope < len(ropes):
                raise KernelError(f"layer {i}: there is no rotary table {layer.rope}")
            cosines, sines = ropes[layer.rope][:2]
            if cosines.shape != sines.shape or cosines.ndim != 2 or 2 * cosines.shape[1] > layer.shape.head_size:
                raise KernelError("a rotary table must be [positions, pairs], with at most half the head size of pairs")
            try:
                layer.check(shape, width)
            except KernelError as error:
                raise KernelError(f"layer {i}: {error}") from None
            source = layer.shape.source
            if source is not None and ("key" in layer.parts or self.layers[source].shape.cached != layer.shape.read):
                raise KernelError(f"layer {i} cannot attend to the keys of layer {source}")
        for output in (self.output, self.exact or self.output):
            if output.shape != (shape.vocabulary, shape.hidden):
                raise KernelError(f"the output is {_size(output)}, which is not vocabulary x hidden")
        if self.embedding.columns != shape.hidden:
            raise KernelError(
                f"the embedding has {self.embedding.columns} columns, and the hidden size is {shape.hidden}"
            )
        if inputs is not None and (
            width % 16
            or inputs.embedding.columns != count * width
            or inputs.projection.shape != (count * width, shape.hidden)
        ):
            raise KernelError(f"the inputs of {count} layers must be of one size, a multiple of 16, and not {width}")
        if (clusters := self.clusters) is not None:
            if clusters.columns != shape.hidden or shape.vocabulary % (clusters.rows * PANEL):
                raise KernelError(f"{_size(clusters)} is not clusters of {PANEL}s of tokens x hidden")
            if not 0 < shape.clusters_scored <= clusters.rows:
                raise KernelError(f"{shape.clusters_scored} of {clusters.rows} clusters cannot be scored")


def _size(matrix: PackedMatrix) -> str:
    return f"{matrix.rows} x {matrix.columns}"
