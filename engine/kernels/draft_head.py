"""A draft head on packed weights: one kernel call per step of its layer, or for all steps of a tree."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.kernels.decoder_weights import DecoderWeights
from specchat.engine.kernels.library import KernelError, library
from specchat.engine.kernels.packed_matrix import PackedMatrix
from specchat.engine.kernels.structures import CHeadModel, CHeadStep
from specchat.engine.kernels.token_layout import Batch, TokenLayout
from specchat.engine.kernels.tree_growth import (
    GrownTree,
    Growth,
    GrowthRules,
    TargetStates,
    TreeRequest,
    c_reads,
)

STATE = -1
"""Source of a token that reads the state stored in its slot and column."""


@dataclass(frozen=True, eq=False, slots=True)
class HeadWeights:
    """Weights of a head (`engine.drafters.head.network.DraftHead`)."""

    layer: DecoderWeights
    """One layer; its embedding is the target's, its output layer that of the draft vocabulary."""
    fuse: PackedMatrix
    """[hidden, taps x hidden]"""
    again: PackedMatrix
    """[hidden, hidden]"""
    token: PackedMatrix
    """[hidden, hidden]"""
    taps: int
    """Number of the target's hidden states that are fused."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Result of a step for the judged tokens."""

    logits: Tensor
    """[m, V'], float32."""
    best: NDArray[np.int32]
    """[m, n], the likeliest of the V' tokens, in descending order."""
    shares: NDArray[np.float32]
    """[m, n], their probabilities at temperature 1."""


class PackedHead:
    """A head on packed weights.

    Raises:
        KernelError: the kernels are not available, or sizes do not match.
    """

    def __init__(self, weights: HeadWeights) -> None:
        hidden = weights.layer.shape.hidden
        if len(weights.layer.layers) != 1:
            raise KernelError(f"a draft head has one layer, and not {len(weights.layer.layers)}")
        for name, columns in (("fuse", weights.taps * hidden), ("again", hidden), ("token", hidden)):
            matrix: PackedMatrix = getattr(weights, name)
            if (matrix.rows, matrix.columns) != (hidden, columns):
                raise KernelError(f"{name} is {matrix.rows} x {matrix.columns} and not {hidden} x {columns}")
        self.weights = weights
        self._kernels = library().c
        model = CHeadModel(
            layer=weights.layer.c,
            fuse=weights.fuse.c,
            again=weights.again.c,
            token=weights.token.c,
            tap_count=weights.taps,
        )
        self._c = self._kernels.sk_head_new(model)
        weakref.finalize(self, self._kernels.sk_head_free, self._c)

    def attach(self, states: Tensor, keys: Tensor, values: Tensor) -> None:
        """Set the memory for states and KV cache, contiguous; kept alive here.

        Args:
            states: float32 [slots, columns, hidden].
            keys: float16 [slots, key_heads, columns, head_size].
            values: as `keys`.

        Raises:
            KernelError: a tensor has another dtype or shape.
        """
        shape, (slots, columns, _) = self.weights.layer.shape, states.shape
        cached = (torch.float16, (slots, shape.key_heads, columns, shape.head_size))
        wanted = ((torch.float32, (slots, columns, shape.hidden)), cached, cached)
        for tensor, (dtype, size) in zip((states, keys, values), wanted, strict=True):
            if tensor.dtype is not dtype or tensor.shape != size or not tensor.is_contiguous():
                raise KernelError(f"a head's memory must be contiguous {dtype} of the shape {list(size)}")
        self._memory = (states, keys, values)
        self._kernels.sk_head_attach(self._c, slots, columns, *(tensor.data_ptr() for tensor in self._memory))

    def write_states(self, read: Sequence[TargetStates], threads: int) -> None:
        """Compute and store the head's states from hidden states of the target.

        Raises:
            KernelError: a slot or column does not exist.
        """
        self._check_states(read)
        self._kernels.sk_head_absorb(self._c, len(read), c_reads(read), threads)

    def grow(
        self,
        read: Sequence[TargetStates],
        wanted: Sequence[TreeRequest],
        q: Tensor | None,
        known: Tensor,
        rules: GrowthRules,
        threads: int,
    ) -> tuple[list[GrownTree], int]:
        """Store new states and grow draft trees (`engine.drafters.growing`).

        Arguments as for `Growth`.

        Returns:
            The trees [B], and the number of draft steps.

        Raises:
            KernelError: arguments do not fit.
        """
        self._check_states(read)
        size = self.weights.layer.shape.vocabulary
        if known.dtype is not torch.int64 or known.shape != (size,) or not known.is_contiguous():
            raise KernelError(f"the draft vocabulary must be {size} contiguous int64")
        wide = (len(wanted), rules.longest, size)
        if q is not None and (q.dtype is not torch.float32 or q.shape != wide or not q.is_contiguous()):
            raise KernelError(f"distributions must be contiguous float32 of the shape {list(wide)}")
        growth = Growth(read, wanted, q, known, rules, threads)
        self._kernels.sk_head_grow(self._c, growth.c)
        return growth.trees, growth.c.steps

    def _check_states(self, read: Sequence[TargetStates]) -> None:
        width = self.weights.taps * self.weights.layer.shape.hidden
        for each in read:
            if each.tapped.ndim != 2 or each.tapped.shape[1] != width:
                raise KernelError(f"hidden states of the shape {list(each.tapped.shape)} are not {width} wide")

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
        size = self.weights.layer.shape.vocabulary
        logits = torch.empty(len(judged), size)
        likeliest = np.empty((len(judged), min(best, size)), dtype=np.int32)
        shares = np.empty(likeliest.shape, dtype=np.float32)
        batch = Batch(tokens, layout, judged, threads)
        batch.c.logits = logits.data_ptr()
        batch.c.best, batch.c.shares = likeliest.ctypes.data, shares.ctypes.data
        batch.c.best_count = likeliest.shape[1]
        if len(sources) != len(tokens):
            raise KernelError(f"sources does not fit a step over {len(tokens)} tokens")
        c_sources = array("i", sources)
        self._kernels.sk_head_run(self._c, CHeadStep(batch=batch.c, sources=c_sources.buffer_info()[0]))
        return Scores(logits, likeliest, shares)
