"""A block drafter on packed weights: a draft is one pass, in the call of the round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.cache.prefix_tree import BLOCK
from specchat.engine.kernels.decoder_weights import DecoderWeights
from specchat.engine.kernels.layer_weights import Floats
from specchat.engine.kernels.library import library, require
from specchat.engine.kernels.packed_matrix import PackedMatrix
from specchat.engine.kernels.state_drafter import StateDrafter
from specchat.engine.kernels.structures import CBlockModel, CCache, CTables


@dataclass(frozen=True, slots=True)
class BlockRows:
    """The rows of a block."""

    size: int
    """Their number, the last token's row included."""
    first: int
    """The first one that scores a token of the draft."""
    mask: int
    """Token of all but the last token's row."""


@dataclass(frozen=True, eq=False, slots=True)
class TokenBias:
    """Bias of the logits of a position by the token before: bias x (row of `previous` ⊙ factors).

    The factors are 1, or `factor` x what the position is scored with, or sigmoid(that + `factor_previous` x the row of
    `previous` + `factor_bias`).
    """

    bias: PackedMatrix
    """[V', rank]"""
    previous: PackedMatrix
    """[V, rank]"""
    factor: PackedMatrix | None = None
    """[rank, hidden]"""
    factor_previous: PackedMatrix | None = None
    """[rank, rank]"""
    factor_bias: Floats | None = None
    """[rank]"""
    candidates: int = 0
    """Likeliest tokens of a position without bias, of which it drafts one; 0: any token."""


@dataclass(frozen=True, eq=False, slots=True)
class Confidence:
    """Logit of the probability that the likeliest token of a position is accepted."""

    weight: Floats
    """[hidden], or [hidden + rank], where the rest is for the row of `TokenBias.previous`."""
    bias: float


class PackedBlock(StateDrafter):
    """A block drafter.

    Args:
        layers: its layers, with the target's embedding and output layer; those that are not causal see later rows.
        fuse: [hidden, taps x hidden].
        fuse_norm: [hidden].
        taps: number of the target's hidden states that are fused.
        rows: of a block.
        bias: by the token before; None for none.
        confidence: None if a token's probability is all that is known.

    Raises:
        KernelError: the kernels are not available.
    """

    def __init__(
        self,
        layers: DecoderWeights,
        fuse: PackedMatrix,
        fuse_norm: Floats,
        taps: int,
        rows: BlockRows,
        bias: TokenBias | None = None,
        confidence: Confidence | None = None,
    ) -> None:
        self._layers, hidden = layers, layers.shape.hidden
        weight = None if confidence is None else np.ascontiguousarray(confidence.weight, np.float32)
        self._kept = (fuse, np.ascontiguousarray(fuse_norm, np.float32), bias, weight)
        model = CBlockModel(
            layers=layers.c,
            fuse=fuse.c,
            fuse_norm=self._kept[1].ctypes.data,
            tap_count=taps,
            size=rows.size,
            first=rows.first,
            mask=rows.mask,
        )
        if bias is not None:
            model.bias, model.previous, model.candidates = bias.bias.c, bias.previous.c, bias.candidates
            if bias.factor is not None:
                model.factor = bias.factor.c
            if bias.factor_previous is not None and bias.factor_bias is not None:
                model.factor_previous, model.factor_bias = bias.factor_previous.c, bias.factor_bias.ctypes.data
        if confidence is not None and weight is not None:
            model.confidence, model.confidence_bias = weight.ctypes.data, confidence.bias
            model.confidence_previous = weight.ctypes.data + 4 * hidden if len(weight) > hidden else None
        super().__init__(library().c.sk_block_new(model), taps * hidden)

    def attach(self, tables: NDArray[np.int32], keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        """Set the memory of keys and values, contiguous; kept alive here.

        Args:
            tables: as for `Decoder.attach`.
            keys: float16 [blocks, key_heads, head_size, 32] per layer.
            values: float16 [blocks, key_heads, 32, head_size] per layer.

        Raises:
            KernelError: a tensor has another dtype or shape.
        """
        shape, blocks = self._layers.shape, len(keys[0])
        for parts, size in ((keys, (shape.head_size, BLOCK)), (values, (BLOCK, shape.head_size))):
            for tensor in parts:
                require(tensor, torch.float16, (blocks, shape.key_heads, *size), "the cache of a block drafter")
        self._memory = (tables, keys, values)
        caches = (CCache * len(keys))(*map(CCache.of, keys, values))
        self._kernels.sk_head_attach(self._c, CTables.of(tables), None, caches)
