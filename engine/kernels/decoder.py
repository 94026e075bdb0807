"""A decoder of the common kind (Llama, Mistral, SmolLM, Qwen2, Qwen3, Gemma 2 and 3, Phi-3), a pass in one call."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.kernels.library import CBatch, CLayer, CModel, CRope, KernelError, library
from specchat.engine.kernels.packed_matrix import PackedMatrix

_ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}
_LARGEST_HEAD = 512
Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


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
    """Factor on the scores."""
    attention_cap: float = 0.0
    """c of c·tanh(score/c); 0 for none."""
    logit_cap: float = 0.0
    """The same on logits."""
    embedding_scale: float = 1.0


@dataclass(frozen=True, eq=False, slots=True)
class LayerWeights:
    """One layer: packed matrices, float32 norms and biases."""

    query: PackedMatrix
    key: PackedMatrix
    value: PackedMatrix
    output: PackedMatrix
    gate: PackedMatrix
    up: PackedMatrix
    down: PackedMatrix
    attention_norm: Floats
    """[hidden], before attention; what is multiplied with, so 1 + w of Gemma."""
    mlp_norm: Floats
    """[hidden], before the MLP."""
    attention_out_norm: Floats | None = None
    """[hidden], on what attention puts out, before it is added."""
    mlp_out_norm: Floats | None = None
    """[hidden], on what the MLP puts out, before it is added."""
    query_norm: Floats | None = None
    """[head_size], on every query head."""
    key_norm: Floats | None = None
    query_bias: Floats | None = None
    key_bias: Floats | None = None
    value_bias: Floats | None = None
    output_bias: Floats | None = None
    window: int = 0
    """Positions that a token sees, itself included; 0 for all."""
    rope: int = 0
    """Which rotary table."""


@dataclass(frozen=True, eq=False, slots=True)
class Chains:
    """Where the tokens of a pass stand, flat: those of a slot next to each other. All arrays are int32."""

    slots: Ints
    """[n]"""
    positions: Ints
    """[n], for the rotary embedding, and the order in which keys are seen."""
    columns: Ints
    """[n], of the cache, where keys and values are written."""
    prefixes: Ints
    """[n], how many columns are seen from 0 on; they hold those positions."""
    ancestor_offsets: Ints
    """[n + 1], the part of `ancestors` that is each token's."""
    ancestors: Ints
    """Tokens of this pass that are seen behind the prefix, by position; the token itself always is."""

    @classmethod
    def plain(cls, slots: Sequence[int], starts: Sequence[int], lengths: Sequence[int]) -> Chains:
        """Rows of `lengths` tokens, each a chain from its start."""
        positions = np.concatenate([np.arange(s, s + n, dtype=np.int32) for s, n in zip(starts, lengths, strict=True)])
        return cls(
            slots=np.repeat(np.asarray(slots, dtype=np.int32), lengths),
            positions=positions,
            columns=positions,
            prefixes=positions,
            ancestor_offsets=np.zeros(len(positions) + 1, dtype=np.int32),
            ancestors=np.zeros(0, dtype=np.int32),
        )


class Decoder:
    """A model on packed weights. A token's bits depend on what it sees alone.

    Args:
        shape: sizes and constants.
        layers: weights, in order.
        embedding: [vocabulary, hidden].
        output: [vocabulary, hidden]; the embedding itself where they are tied.
        final_norm: [hidden].
        ropes: cosines and sines [positions, pairs] of each rotary table; dimension d turns with d + pairs.

    Raises:
        KernelError: there are no kernels here, or sizes do not fit.
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
        self._library = library()
        self._kept: list[Any] = [embedding, output, self.layers]
        c_layers = (CLayer * len(layers))(*map(self._c_layer, layers))
        c_ropes = (CRope * len(ropes))(*(CRope(self._keep(c), self._keep(s), len(c), c.shape[1]) for c, s in ropes))
        model = CModel(
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
        self._c = self._library.new_decoder(model)
        weakref.finalize(self, self._library.free_decoder, self._c)

    def attach(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        """Use this cache: float16 [slots, key_heads, columns, head_size] per layer, contiguous, kept alive here.

        Raises:
            KernelError: a tensor is of another kind or shape.
        """
        slots, _, columns, _ = keys[0].shape
        wanted = (slots, self.shape.key_heads, columns, self.shape.head_size)
        if len(keys) != len(self.layers) or len(values) != len(self.layers):
            raise KernelError(f"a cache of {len(keys)} layers does not fit a model of {len(self.layers)}")
        for tensor in (*keys, *values):
            if tensor.dtype is not torch.float16 or tensor.shape != wanted or not tensor.is_contiguous():
                raise KernelError(f"the cache must be contiguous float16 tensors of the shape {list(wanted)}")
        self._cache = (*keys, *values)
        addresses = [[tensor.data_ptr() for tensor in part] for part in (keys, values)]
        self._library.attach(self._c, slots, columns, *addresses)

    def run(
        self,
        tokens: NDArray[np.int64],
        chains: Chains,
        judged: Ints,
        threads: int,
        taps: Sequence[int] = (),
    ) -> tuple[Tensor, Tensor | None]:
        """One pass.

        Args:
            tokens: [n].
            chains: where they stand.
            judged: [m], the tokens whose logits are wanted.
            threads: how many compute, this one included.
            taps: depths of hidden states to hand out: 0 the embeddings, the number of layers what the final norm gives.

        Returns:
            Logits [m, vocabulary], and the tapped states [n, taps x hidden] or None; float32.

        Raises:
            KernelError: something does not fit, which is said before anything is computed.
        """
        count = len(tokens)
        logits = torch.empty(len(judged), self.shape.vocabulary)
        tapped = torch.empty(count, len(taps) * self.shape.hidden) if taps else None
        depths = np.asarray(taps, dtype=np.int32)
        tokens = np.ascontiguousarray(tokens, dtype=np.int64)
        judged = np.ascontiguousarray(judged, dtype=np.int32)
        parts = {f.name: np.ascontiguousarray(getattr(chains, f.name), dtype=np.int32) for f in fields(chains)}
        for name, part in parts.items():
            if name != "ancestors" and len(part) != count + (name == "ancestor_offsets"):
                raise KernelError(f"{name} does not fit a pass over {count} tokens")
        if count and parts["ancestor_offsets"][-1] > len(parts["ancestors"]):
            raise KernelError("ancestor_offsets points beyond the ancestors")
        batch = CBatch(
            tokens=count,
            ids=tokens.ctypes.data,
            judged_count=len(judged),
            judged=judged.ctypes.data,
            logits=logits.data_ptr(),
            tap_count=len(taps),
            taps=depths.ctypes.data,
            tapped=None if tapped is None else tapped.data_ptr(),
            threads=threads,
            **{name: part.ctypes.data for name, part in parts.items()},
        )
        self._library.run(self._c, batch)
        return logits, tapped

    @property
    def bytes(self) -> int:
        """Memory of all weights."""
        matrices = {id(m.data): m.data.nbytes for m in (self.embedding, self.output)}
        return sum(matrices.values()) + sum(
            part.data.nbytes if isinstance(part, PackedMatrix) else part.nbytes
            for layer in self.layers
            for part in (getattr(layer, f.name) for f in fields(layer))
            if isinstance(part, PackedMatrix | np.ndarray)
        )

    def _c_layer(self, layer: LayerWeights) -> CLayer:
        parts: dict[str, Any] = {}
        for field in fields(layer):
            part = getattr(layer, field.name)
            if isinstance(part, PackedMatrix):
                part = part.c
            elif isinstance(part, np.ndarray):
                part = self._keep(part)
            parts[field.name] = part
        return CLayer(**parts)

    def _keep(self, array: Floats) -> int:
        """The address of the values as float32, which live as long as this object."""
        plain = np.ascontiguousarray(array, dtype=np.float32)
        self._kept.append(plain)
        return int(plain.ctypes.data)


def check_sizes(hidden: int, head_size: int, intermediate: int) -> None:
    """Check that the decoder can compute with these sizes.

    Raises:
        KernelError: it cannot.
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
    """Refuse what the kernels cannot compute."""
    if shape.activation not in _ACTIVATIONS:
        raise KernelError(f"activation {shape.activation!r} is not known: choose one of {', '.join(_ACTIVATIONS)}")
    check_sizes(shape.hidden, shape.head_size, shape.intermediate)
    if shape.heads % shape.key_heads:
        raise KernelError(f"{shape.heads} query heads cannot share {shape.key_heads} key heads")
    queries, keys = shape.heads * shape.head_size, shape.key_heads * shape.head_size
    wanted = {
        "query": (queries, shape.hidden),
        "key": (keys, shape.hidden),
        "value": (keys, shape.hidden),
        "output": (shape.hidden, queries),
        "gate": (shape.intermediate, shape.hidden),
        "up": (shape.intermediate, shape.hidden),
        "down": (shape.hidden, shape.intermediate),
    }
    vectors = {
        **dict.fromkeys(("attention_norm", "mlp_norm", "attention_out_norm", "mlp_out_norm"), shape.hidden),
        **dict.fromkeys(("query_norm", "key_norm"), shape.head_size),
        "query_bias": queries,
        "key_bias": keys,
        "value_bias": keys,
        "output_bias": shape.hidden,
    }
    for i, layer in enumerate(layers):
        for name, size in wanted.items():
            matrix: PackedMatrix = getattr(layer, name)
            if (matrix.rows, matrix.columns) != size:
                raise KernelError(
                    f"layer {i}: {name} is {matrix.rows} x {matrix.columns} and not {size[0]} x {size[1]}"
                )
        for name, length in vectors.items():
            vector = getattr(layer, name)
            if vector is not None and vector.shape != (length,):
                raise KernelError(f"layer {i}: {name} has the shape {list(vector.shape)} and not [{length}]")
        if not 0 <= layer.rope < len(ropes):
            raise KernelError(f"layer {i}: there is no rotary table {layer.rope}")
    for name, matrix in (("embedding", embedding), ("output", output)):
        if (matrix.rows, matrix.columns) != (shape.vocabulary, shape.hidden):
            raise KernelError(f"the {name} is {matrix.rows} x {matrix.columns}, which is not vocabulary x hidden")
    for cosines, sines in ropes:
        if cosines.shape != sines.shape or cosines.ndim != 2 or 2 * cosines.shape[1] > shape.head_size:
            raise KernelError("a rotary table must be [positions, pairs], with at most half the head size of pairs")
