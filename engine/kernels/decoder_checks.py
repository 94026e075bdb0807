"""Checks of a decoder's weights: their sizes must fit those of the decoder."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.engine.kernels.decoder_shape import DecoderShape, LayerShape, check_shape
from specchat.engine.kernels.layer_weights import Floats, LayerInputs, LayerWeights
from specchat.engine.kernels.library import KernelError
from specchat.engine.kernels.packed_matrix import PackedMatrix

ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "clamped_swish": 3}
"""Their numbers in the kernels."""
_PANEL = 16
"""Rows of a matrix that the kernels compute together."""
_MOST_TAPS = 16
_WITH_BIAS = ("query", "key", "value", "output", "gate", "up", "down", "router")
"""Matrices of a layer that may have a bias."""


def check_weights(
    shape: DecoderShape,
    layers: Sequence[LayerWeights],
    embedding: PackedMatrix,
    output: PackedMatrix,
    ropes: Sequence[tuple[Floats, Floats]],
    inputs: LayerInputs | None,
) -> None:
    """Check all sizes against each other."""
    if shape.activation not in ACTIVATIONS:
        raise KernelError(f"activation {shape.activation!r} is not known: choose one of {', '.join(ACTIVATIONS)}")
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


def check_clusters(shape: DecoderShape, clusters: PackedMatrix) -> None:
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
    queries, keys = shape.heads * sizes.head_size, sizes.key_heads * sizes.head_size
    hidden, inner = shape.hidden, sizes.intermediate
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
