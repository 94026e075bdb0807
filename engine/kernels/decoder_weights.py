"""Weights of a decoder: shapes are checked, and arrays are kept alive for the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from specchat.engine.kernels.decoder_checks import ACTIVATIONS, check_clusters, check_weights
from specchat.engine.kernels.decoder_shape import DecoderShape
from specchat.engine.kernels.layer_weights import Floats, LayerInputs, LayerWeights
from specchat.engine.kernels.packed_matrix import PackedMatrix
from specchat.engine.kernels.structures import CLayer, CModel, CRope

_OF_LAYERS = ("activation", "key_heads", "head_size", "intermediate")
"""Fields of `DecoderShape` that `sk_model` has not, or not as such."""


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
        check_weights(shape, layers, embedding, output, ropes, inputs)
        if clusters is not None:
            check_clusters(shape, clusters)
        self.shape = shape
        self.layers = tuple(layers)
        self.embedding, self.output, self.inputs, self.clusters = embedding, output, inputs, clusters
        self._kept: list[Any] = []
        c_layers = (CLayer * len(layers))(*(self._c_layer(i, each) for i, each in enumerate(layers)))
        c_ropes = (CRope * len(ropes))(*(CRope(self._keep(c), self._keep(s), len(c), c.shape[1]) for c, s in ropes))
        self.c = CModel(
            layer_count=len(layers),
            activation=ACTIVATIONS[shape.activation],
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
