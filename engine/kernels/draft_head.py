"""A draft head on packed weights: a step of its layer, for any number of places, in one call."""

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
    Growing,
    GrownTree,
    GrowthRules,
    TargetStates,
    TreeRequest,
    c_reads,
)

STATE = -1
"""Source of a place that reads the state in its slot and column."""


@dataclass(frozen=True, eq=False, slots=True)
class HeadWeights:
    """All weights of a head (`engine.drafters.head.network.DraftHead`)."""

    layer: DecoderWeights
    """One layer; its embedding is the target's, its output scores the draft vocabulary, its final norm comes before."""
    fuse: PackedMatrix
    """[hidden, taps x hidden]"""
    again: PackedMatrix
    """[hidden, hidden]"""
    token: PackedMatrix
    """[hidden, hidden]"""
    taps: int
    """Hidden states that are fused."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What a step says of the judged places."""

    logits: Tensor
    """[m, V'], float32."""
    best: NDArray[np.int32]
    """[m, n], the likeliest of the V' tokens, the first ones first."""
    shares: NDArray[np.float32]
    """[m, n], their probabilities at temperature 1."""


class PackedHead:
    """A head on packed weights.

    Raises:
        KernelError: there are no kernels here, or sizes do not fit.
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
        self._library = library()
        model = CHeadModel(
            layer=weights.layer.c,
            fuse=weights.fuse.c,
            again=weights.again.c,
            token=weights.token.c,
            tap_count=weights.taps,
        )
        self._c = self._library.new_head(model)
        weakref.finalize(self, self._library.free_head, self._c)

    def attach(self, states: Tensor, keys: Tensor, values: Tensor) -> None:
        """Use this memory, contiguous, kept alive here.

        Args:
            states: float32 [slots, columns, hidden].
            keys: float16 [slots, key_heads, columns, head_size].
            values: as `keys`.

        Raises:
            KernelError: a tensor is of another kind or shape.
        """
        shape, (slots, columns, _) = self.weights.layer.shape, states.shape
        cached = (torch.float16, (slots, shape.key_heads, columns, shape.head_size))
        wanted = ((torch.float32, (slots, columns, shape.hidden)), cached, cached)
        for tensor, (dtype, size) in zip((states, keys, values), wanted, strict=True):
            if tensor.dtype is not dtype or tensor.shape != size or not tensor.is_contiguous():
                raise KernelError(f"a head's memory must be contiguous {dtype} of the shape {list(size)}")
        self._memory = (states, keys, values)
        self._library.attach_head(self._c, slots, columns, *(tensor.data_ptr() for tensor in self._memory))

    def absorb(self, read: Sequence[TargetStates], threads: int) -> None:
        """Write the states of tokens.

        Args:
            read: the target's hidden states there.
            threads: how many compute, this one included.

        Raises:
            KernelError: a place is not in the memory.
        """
        self._check_states(read)
        self._library.absorb(self._c, c_reads(read), threads)

    def grow(
        self,
        read: Sequence[TargetStates],
        wanted: Sequence[TreeRequest],
        q: Tensor | None,
        known: Tensor,
        rules: GrowthRules,
        threads: int,
    ) -> tuple[list[GrownTree], int]:
        """Take in what the target has read, and draft trees as `engine.drafters.growing` says.

        Args: those of `Growing`.

        Returns:
            The trees [B], and how many draft steps they took.

        Raises:
            KernelError: something does not fit.
        """
        self._check_states(read)
        size = self.weights.layer.shape.vocabulary
        if known.dtype is not torch.int64 or known.shape != (size,) or not known.is_contiguous():
            raise KernelError(f"the tokens that can be drafted must be {size} contiguous int64")
        wide = (len(wanted), rules.longest, size)
        if q is not None and (q.dtype is not torch.float32 or q.shape != wide or not q.is_contiguous()):
            raise KernelError(f"distributions must be contiguous float32 of the shape {list(wide)}")
        growing = Growing(read, wanted, q, known, rules, threads)
        self._library.grow(self._c, growing.c)
        return growing.trees, growing.c.steps

    def _check_states(self, read: Sequence[TargetStates]) -> None:
        width = self.weights.taps * self.weights.layer.shape.hidden
        for each in read:
            if each.tapped.ndim != 2 or each.tapped.shape[1] != width:
                raise KernelError(f"hidden states of the shape {list(each.tapped.shape)} are not {width} wide")

    def run(
        self,
        tokens: Sequence[int],
        chains: TokenLayout,
        sources: Sequence[int],
        judged: Sequence[int],
        best: int,
        threads: int,
    ) -> Scores:
        """One step.

        Args:
            tokens: [n], the target's tokens of these places.
            chains: where they stand.
            sources: [n], the place judged in the step before that each follows, or `STATE`.
            judged: [m], the places whose scores are wanted.
            best: how many of the likeliest tokens of each.
            threads: how many compute, this one included.

        Raises:
            KernelError: something does not fit, which is said before anything is computed.
        """
        size = self.weights.layer.shape.vocabulary
        logits = torch.empty(len(judged), size)
        places = np.empty((len(judged), min(best, size)), dtype=np.int32)
        shares = np.empty(places.shape, dtype=np.float32)
        batch = Batch(tokens, chains, judged, threads)
        batch.c.logits = logits.data_ptr()
        batch.c.best, batch.c.shares = places.ctypes.data, shares.ctypes.data
        batch.c.best_count = places.shape[1]
        if len(sources) != len(tokens):
            raise KernelError(f"sources does not fit a step over {len(tokens)} places")
        behind = array("i", sources)
        self._library.run_head(self._c, CHeadStep(batch=batch.c, sources=behind.buffer_info()[0]))
        return Scores(logits, places, shares)
