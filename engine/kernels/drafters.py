"""Drafters on packed weights: a head, one kernel call per step of its layer, and a block drafter, one per draft."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.cache.prefix_tree import BLOCK
from specchat.engine.kernels.decoder import Batch, TokenLayout
from specchat.engine.kernels.decoder_weights import DecoderWeights, Floats
from specchat.engine.kernels.library import CBlockModel, CCache, CHeadModel, CHeadStep, CTables, library, require
from specchat.engine.kernels.packed_matrix import PackedMatrix
from specchat.engine.kernels.round import RoundRows, TargetStates, c_reads


class StateDrafter:
    """A draft head or a block drafter.

    Args:
        address: `sk_head`, which is freed with this object.
        width: of the target's hidden states that it reads.
    """

    def __init__(self, address: int, width: int) -> None:
        self.width = width
        self._kernels, self._c = library().c, address
        self.drafter: int = self._kernels.sk_head_drafter(address)
        """`sk_drafter` of it."""
        # Not at exit, when a thread may be in a step.
        weakref.finalize(self, self._kernels.sk_head_free, address).atexit = False

    def write_states(self, read: Sequence[TargetStates], threads: int) -> None:
        """Compute and store what drafts need of hidden states of the target.

        Raises:
            KernelError: a slot or column does not exist.
        """
        self._kernels.sk_head_absorb(self._c, len(read), c_reads(read, self.width), threads)

    def absorb(self, rows: RoundRows) -> None:
        """Compute and store the same of each row's last token and of the tokens that a round has accepted.

        Raises:
            KernelError: the round has other hidden states.
        """
        self._kernels.sk_head_absorb_round(self._c, rows.c)


STATE = -1
"""Source of a token that reads the state stored in its slot and column."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Result of a step for the judged tokens."""

    logits: Tensor
    """[m, V'], float32."""
    best: NDArray[np.int32]
    """[m, n], the likeliest of the V' tokens, in descending order."""
    shares: NDArray[np.float32]
    """[m, n], their probabilities at temperature 1."""


class PackedHead(StateDrafter):
    """A head on packed weights (`engine.drafters.head.network.DraftHead`).

    Args:
        layer: one layer; its embedding is the target's, its output layer that of the draft vocabulary.
        fuse: [hidden, taps x hidden].
        again: [hidden, hidden].
        token: [hidden, hidden].
        taps: number of the target's hidden states that are fused.

    Raises:
        KernelError: the kernels are not available.
    """

    def __init__(
        self, layer: DecoderWeights, fuse: PackedMatrix, again: PackedMatrix, token: PackedMatrix, taps: int
    ) -> None:
        self._layer, self._matrices = layer, (fuse, again, token)
        model = CHeadModel(layer=layer.c, fuse=fuse.c, again=again.c, token=token.c, tap_count=taps)
        super().__init__(library().c.sk_head_new(model), taps * layer.shape.hidden)

    def attach(self, tables: NDArray[np.int32], states: Tensor, keys: Tensor, values: Tensor) -> None:
        """Set the memory for states and KV cache, contiguous; kept alive here.

        Args:
            tables: as for `Decoder.attach`.
            states: float32 [blocks, 32, hidden].
            keys: float16 [blocks, key_heads, head_size, 32].
            values: float16 [blocks, key_heads, 32, head_size].

        Raises:
            KernelError: a tensor has another dtype or shape.
        """
        shape, blocks = self._layer.shape, len(states)
        sizes = ((shape.head_size, BLOCK), (BLOCK, shape.head_size))
        require(states, torch.float32, (blocks, BLOCK, shape.hidden), "states of a head")
        for tensor, size in zip((keys, values), sizes, strict=True):
            require(tensor, torch.float16, (blocks, shape.key_heads, *size), "the cache of a head")
        self._memory = (tables, states, keys, values)
        self._kernels.sk_head_attach(self._c, CTables.of(tables), states.data_ptr(), CCache.of(keys, values))

    def run(
        self,
        tokens: Sequence[int],
        layout: TokenLayout,
        sources: Sequence[int],
        judged: Sequence[int],
        best: int,
        threads: int,
    ) -> Scores:
        """One step.

        Args:
            tokens: [n], target token ids.
            layout: of the tokens.
            sources: [n], index of the previous step's judged token that each follows, or `STATE`.
            judged: [m], indices of the tokens whose scores are computed.
            best: number of likeliest tokens to return for each.
            threads: number of threads, the caller included.

        Raises:
            KernelError: arguments do not fit; nothing has been computed.
        """
        size = self._layer.shape.vocabulary
        logits = torch.empty(len(judged), size)
        likeliest = np.empty((len(judged), min(best, size)), dtype=np.int32)
        shares = np.empty(likeliest.shape, dtype=np.float32)
        batch = Batch(tokens, layout, judged, threads)
        batch.c.logits = logits.data_ptr()
        batch.c.best, batch.c.shares = likeliest.ctypes.data, shares.ctypes.data
        batch.c.best_count = likeliest.shape[1]
        c_sources = array("i", sources)
        self._kernels.sk_head_run(self._c, CHeadStep(batch=batch.c, sources=c_sources.buffer_info()[0]))
        return Scores(logits, likeliest, shares)


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
        layers: its layers, with the target's embedding and output layer; layers that are not causal see later rows.
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
