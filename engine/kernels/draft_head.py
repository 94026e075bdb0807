"""A draft head on packed weights: one kernel call per step of its layer, or for all steps of a tree that grows."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Sequence
from ctypes import Array
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.cache.prefix_tree import BLOCK
from specchat.engine.kernels.decoder_weights import DecoderWeights
from specchat.engine.kernels.library import KernelError, library
from specchat.engine.kernels.packed_matrix import PackedMatrix
from specchat.engine.kernels.sampling import c_settings
from specchat.engine.kernels.structures import CCache, CGrowing, CGrowth, CHeadModel, CHeadStep, CRead, CTables
from specchat.engine.kernels.token_layout import Batch, TokenLayout
from specchat.engine.request import Sampling

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


@dataclass(frozen=True, slots=True)
class GrowthRules:
    """Settings for all trees of a call."""

    edges: Sequence[float]
    """Lower limits of the confidence grades, as probabilities."""
    longest: int
    """Maximum number of tokens per tree."""
    branches: int
    """Maximum number of children per node."""
    least: float
    """Minimum cost of a token."""
    hope: float
    """Probability that the likeliest child of an accepted node is accepted."""
    stream: int
    """Random number stream."""


class TreeRequest(NamedTuple):
    """The tree to grow for one row."""

    slot: int
    begin: int
    """First column that the head has to read."""
    ids: Sequence[int]
    """Tokens from that column on, at least one."""
    depth: int
    """Maximum depth."""
    line: int
    """Depth that is drafted regardless of cost."""
    repeatable: bool
    """Whether its growth must not depend on other rows."""
    passes: Sequence[float]
    """[longest + 1], cost of verifying 0, 1, … tokens."""
    step: float
    """Cost of a draft step."""
    rates: Sequence[float]
    """[grades], probability that a token is accepted."""
    sampling: Sampling | None
    """Settings of a row whose tokens are sampled; None takes the likeliest tokens."""
    seed: int
    number: int
    """Round number, for the random numbers."""


class GrownTree(NamedTuple):
    """The tree of one row."""

    tokens: list[int]
    parents: list[int]
    """Parent of each token: 0 is the row's last token, i the i-th drafted one."""
    grades: list[int]


class TargetStates(NamedTuple):
    """Hidden states of the target for some tokens of a slot."""

    slot: int
    first: int
    """Column of the first token."""
    tapped: Tensor
    """[n or more, taps x hidden], float32, contiguous."""
    tokens: int
    """n"""


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
        self.weights, self._width = weights, weights.taps * hidden
        self._kernels = library().c
        model = CHeadModel(
            layer=weights.layer.c,
            fuse=weights.fuse.c,
            again=weights.again.c,
            token=weights.token.c,
            tap_count=weights.taps,
        )
        self._c = self._kernels.sk_head_new(model)
        self._known: Tensor | None = None
        """The draft vocabulary, once checked."""
        weakref.finalize(self, self._kernels.sk_head_free, self._c)

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
        shape, blocks = self.weights.layer.shape, len(states)
        sizes = ((shape.head_size, BLOCK), (BLOCK, shape.head_size))
        cached = [(torch.float16, (blocks, shape.key_heads, *size)) for size in sizes]
        wanted = ((torch.float32, (blocks, BLOCK, shape.hidden)), *cached)
        for tensor, (dtype, size) in zip((states, keys, values), wanted, strict=True):
            if tensor.dtype is not dtype or tensor.shape != size or not tensor.is_contiguous():
                raise KernelError(f"a head's memory must be contiguous {dtype} of the shape {list(size)}")
        self._memory = (tables, states, keys, values)
        self._kernels.sk_head_attach(self._c, CTables.of(tables), states.data_ptr(), CCache.of(keys, values))

    def write_states(self, read: Sequence[TargetStates], threads: int) -> None:
        """Compute and store the head's states from hidden states of the target.

        Raises:
            KernelError: a slot or column does not exist.
        """
        self._kernels.sk_head_absorb(self._c, len(read), _c_reads(read, self._width), threads)

    def grow(
        self,
        read: Sequence[TargetStates],
        wanted: Sequence[TreeRequest],
        q: Tensor | None,
        known: Tensor,
        rules: GrowthRules,
        threads: int,
    ) -> tuple[list[GrownTree], int]:
        """Store new states and grow draft trees (`engine.drafters.tree_growth`).

        Args:
            read: new hidden states of the target.
            wanted: [B].
            q: [B, longest, V'], float32, contiguous: output, the distribution of each node's children; None if no row
                is sampled.
            known: [V'], int64, contiguous: draft vocabulary as target token ids.
            rules: for all trees.
            threads: number of threads, the caller included.

        Returns:
            The trees [B], and the number of draft steps.

        Raises:
            KernelError: arguments do not fit.
        """
        count, longest, grades = len(wanted), rules.longest, len(rules.edges) + 1
        if any(len(tree.passes) != longest + 1 or len(tree.rates) != grades or not tree.ids for tree in wanted):
            raise KernelError(f"a tree needs {longest + 1} costs, {grades} rates and a token to begin with")
        self._check(q, known, (count, longest))
        if q is None and any(tree.sampling for tree in wanted):
            raise KernelError("sampled trees need memory for their distributions")
        # In arrays of the standard library: for a short pass, numpy's time per call is noticeable.
        drafted, edges = array("q", bytes(24 * count * longest)), array("d", rules.edges)
        rows, _kept = _c_rows(wanted, longest, q, drafted.buffer_info()[0])
        growing = CGrowing(
            count,
            rows,
            len(read),
            _c_reads(read, self._width),
            known.data_ptr(),
            edges.buffer_info()[0],
            grades - 1,
            longest,
            rules.branches,
            rules.stream,
            rules.least,
            rules.hope,
            threads,
        )
        self._kernels.sk_head_grow(self._c, growing)
        found = drafted.tolist()
        starts = range(0, len(found), longest)
        trees = [
            GrownTree(*(found[at : at + row.count] for at in starts[3 * i : 3 * i + 3])) for i, row in enumerate(rows)
        ]
        return trees, growing.steps

    def _check(self, q: Tensor | None, known: Tensor, wide: tuple[int, int]) -> None:
        """Check the arguments of `grow` that are tensors."""
        size = self.weights.layer.shape.vocabulary
        if known is not self._known:
            if known.dtype is not torch.int64 or known.shape != (size,) or not known.is_contiguous():
                raise KernelError(f"the draft vocabulary must be {size} contiguous int64")
            self._known = known
        if q is not None and (q.dtype is not torch.float32 or q.shape != (*wide, size) or not q.is_contiguous()):
            raise KernelError(f"distributions must be contiguous float32 of the shape {[*wide, size]}")

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


def _c_rows(wanted: Sequence[TreeRequest], longest: int, q: Tensor | None, drafted: int) -> tuple[Array[CGrowth], Any]:
    """`sk_growth` of each row, and what has to live as long; `drafted` is the address of [B, 3, longest] results."""
    ids = [array("q", tree.ids) for tree in wanted]
    numbers = [array("d", (*tree.passes, *tree.rates)) for tree in wanted]
    q_at, q_size = (0, 0) if q is None else (q.data_ptr(), 4 * longest * q.shape[2])
    rows = []
    for i, tree in enumerate(wanted):
        passes = numbers[i].buffer_info()[0]
        row = CGrowth(
            tree.slot,
            tree.begin,
            tree.begin + len(tree.ids),
            tree.depth,
            tree.line,
            tree.repeatable,
            ids[i].buffer_info()[0],
            passes,
            passes + 8 * (longest + 1),
            tree.step,
            tree.sampling and c_settings(tree.sampling),
            tree.seed,
            tree.number,
            q_at + i * q_size,
            drafted + i * 24 * longest,
        )
        rows.append(row)
    return (CGrowth * len(rows))(*rows), (ids, numbers)


def _c_reads(read: Sequence[TargetStates], width: int) -> Array[CRead]:
    """`sk_read` of each; valid while the hidden states live.

    Raises:
        KernelError: they are not contiguous float32 of this width.
    """
    for each in read:
        if each.tapped.dtype is not torch.float32 or each.tapped.stride() != (width, 1):
            raise KernelError(f"hidden states must be contiguous float32 and {width} wide")
    return (CRead * len(read))(*(CRead(each.slot, each.first, each.tokens, each.tapped.data_ptr()) for each in read))
