"""A draft head on packed weights: one kernel call per step of its layer."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.cache.prefix_tree import BLOCK
from specchat.engine.kernels.decoder import Batch, TokenLayout
from specchat.engine.kernels.decoder_weights import DecoderWeights
from specchat.engine.kernels.library import library, require
from specchat.engine.kernels.packed_matrix import PackedMatrix
from specchat.engine.kernels.state_drafter import StateDrafter
from specchat.engine.kernels.structures import CCache, CHeadModel, CHeadStep, CTables

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
