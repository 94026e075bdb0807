"""A decoder of one of the supported families whose forward pass is one kernel call, and the layout of its tokens."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Collection, Iterable, Sequence
from ctypes import c_void_p, pointer
from functools import lru_cache
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.cache.prefix_tree import BLOCK
from specchat.engine.kernels.decoder_weights import DecoderWeights
from specchat.engine.kernels.library import CBatch, CCache, CGrowing, CTables, KernelError, library, require
from specchat.engine.kernels.round import RoundRows

Lengths = NDArray[np.int32]


class TokenLayout(NamedTuple):
    """Slots, positions and visible columns of n tokens; tokens of the same slot are adjacent."""

    slots: Sequence[int]
    """[n]"""
    positions: Sequence[int]
    """[n], for the rotary embedding and for the order in which keys are read."""
    columns: Sequence[int]
    """[n], of the cache, where keys and values are written."""
    prefixes: Sequence[int]
    """[n], number of leading columns that a token sees; they hold the positions 0, 1, …"""
    ancestor_offsets: Sequence[int]
    """[n + 1], where each token's part of `ancestors` begins."""
    ancestors: Sequence[int]
    """Further columns that a token sees after its prefix, by position; it always sees itself."""

    @classmethod
    def chains(cls, slots: Sequence[int], starts: Sequence[int], lengths: Sequence[int]) -> TokenLayout:
        """One chain of tokens per slot, of `lengths` tokens from position `starts` on."""
        positions = [start + i for start, length in zip(starts, lengths, strict=True) for i in range(length)]
        return cls(
            slots=[slot for slot, length in zip(slots, lengths, strict=True) for _ in range(length)],
            positions=positions,
            columns=positions,
            prefixes=positions,
            ancestor_offsets=[0] * (len(positions) + 1),
            ancestors=[],
        )

    @classmethod
    def of(cls, tokens: Iterable[tuple[int, int, int, int, Sequence[int]]]) -> TokenLayout:
        """Make a layout from slot, position, column, prefix and ancestors of each token."""
        slots, positions, columns, prefixes, ancestors = zip(*tokens, strict=True)
        offsets = list(accumulate(map(len, ancestors), initial=0))
        return cls(slots, positions, columns, prefixes, offsets, list(chain.from_iterable(ancestors)))


class Batch:
    """`sk_batch` of one pass.

    Args:
        tokens: [n].
        layout: of the tokens.
        judged: [m], indices of the tokens whose logits are computed.
        threads: number of threads, the caller included.

    Raises:
        KernelError: lengths do not fit.
    """

    def __init__(self, tokens: Sequence[int], layout: TokenLayout, judged: Sequence[int], threads: int) -> None:
        count, offsets = len(tokens), layout.ancestor_offsets
        if {len(part) for part in layout[:4]} != {count} or len(offsets) != count + 1:
            raise KernelError(f"the layout does not fit a pass over {count} tokens")
        if offsets[-1] > len(layout.ancestors):
            raise KernelError("ancestor_offsets points beyond the ancestors")
        # In two arrays of the standard library: for a short pass, numpy's time per call is noticeable.
        ids, numbers = array("q", tokens), array("i", chain(*layout, judged))
        self._kept = (ids, numbers)
        first, step = numbers.buffer_info()[0], numbers.itemsize * count
        places = range(first, first + 5 * step, step)
        ancestors = places[-1] + step + numbers.itemsize
        wanted = ancestors + numbers.itemsize * len(layout.ancestors)
        self.c = CBatch(count, ids.buffer_info()[0], None, *places, ancestors, len(judged), wanted)
        self.c.threads = threads
        """Valid while this object lives. The caller sets the output addresses."""


class Decoder:
    """A model on packed weights. Results are batch-invariant: a token's bits depend only on the tokens it sees.

    Raises:
        KernelError: the kernels are not available.
    """

    def __init__(self, weights: DecoderWeights) -> None:
        self.weights, self.shape = weights, weights.shape
        self._kernels = library().c
        self._c = self._kernels.sk_decoder_new(weights.c)
        self.drafter: int = self._kernels.sk_decoder_drafter(self._c)
        """`sk_drafter` by which it drafts for others."""
        # Not at exit, when a thread may be in a pass.
        weakref.finalize(self, self._kernels.sk_decoder_free, self._c).atexit = False

    def attach(
        self, tables: Lengths, keys: Sequence[Tensor], values: Sequence[Tensor], *scales: Sequence[Tensor]
    ) -> None:
        """Set the KV cache, contiguous; kept alive here.

        Args:
            tables: [slots, width], the blocks that hold the columns of each slot; may change between passes.
            keys: float16 [blocks, key_heads, head_size, 32] per layer, without elements for layers that
                share the keys of another one. Or int8 codes, with scales.
            values: the same, [blocks, key_heads, 32, head_size].
            scales: of the keys and of the values, float32 [blocks, key_heads, 32, 1] per layer.

        Raises:
            KernelError: a tensor has another dtype or shape.
        """
        blocks = keys[0].shape[0]
        cached = [(0, 0) if layer.is_recurrent else layer.shape.cached for layer in self.weights.layers]
        layers = list(zip(keys, values, *scales, strict=True))
        if len(layers) != len(cached):
            raise KernelError(f"a cache of {len(layers)} layers does not fit a model of {len(cached)}")
        dtypes = [torch.int8] * 2 + [torch.float32] * 2 if scales else [torch.float16] * 2
        for layer, (heads, size) in zip(layers, cached, strict=True):
            sizes = ((size, BLOCK), (BLOCK, size), *[(BLOCK, 1)] * 2)
            for tensor, dtype, wanted in zip(layer, dtypes, sizes, strict=False):
                require(tensor, dtype, (blocks, heads, *wanted), "the cache")
        self._cache = (tables, layers)
        c_layers = (CCache * len(layers))(*(CCache.of(*layer) for layer in layers))
        self._kernels.sk_decoder_attach(self._c, CTables.of(tables), c_layers)

    def attach_states(self, rings: Tensor, stored: Tensor, lengths: Lengths, commits: Lengths) -> None:
        """Set what the slots know of recurrent layers (`engine.cache.paged_cache`); kept alive here."""
        self._states = (rings, stored, lengths, commits)
        places = [number for number, layer in enumerate(self.weights.layers) if layer.is_recurrent]
        addresses = [(c_void_p * len(self.weights.layers))() for _ in range(2)]
        for part, tensor in zip(addresses, (rings, stored), strict=True):
            for number, layer in zip(places, tensor, strict=True):
                part[number] = layer.data_ptr()
        known = (lengths.ctypes.data, commits.ctypes.data)
        self._kernels.sk_decoder_attach_recurrent(self._c, rings.shape[2], *addresses, *known)

    def run(
        self,
        tokens: Sequence[int],
        layout: TokenLayout,
        judged: Sequence[int],
        threads: int,
        taps: Sequence[int] = (),
        entered: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Forward pass.

        Args:
            tokens: [n].
            layout: of the tokens.
            judged: [m], indices of the tokens whose logits are computed.
            threads: number of threads, the caller included.
            taps: depths of hidden states to return: 0 the embeddings, the number of layers the final norm's output.
            entered: [n, hidden], input of the first layer; None for the embeddings of the tokens.

        Returns:
            Logits [m, V], and the tapped hidden states [n, taps x hidden] or None; float32.

        Raises:
            KernelError: arguments do not fit; nothing has been computed.
        """
        logits, batch = torch.empty(len(judged), self.shape.vocabulary), Batch(tokens, layout, judged, threads)
        count, hidden = batch.c.tokens, self.shape.hidden
        batch.c.logits = logits.data_ptr()
        if entered is not None:
            if entered.shape != (count, hidden):
                raise KernelError(f"a pass over {count} tokens cannot read states of the shape {list(entered.shape)}")
            entered = entered.float().contiguous()
            batch.c.entered = entered.data_ptr()
        tapped = None
        if taps:
            tapped = torch.empty(count, len(taps) * hidden)
            batch.c.tapped = tapped.data_ptr()
            batch.c.tap_count, batch.c.taps = len(taps), _c_taps(tuple(taps)).buffer_info()[0]
        self._kernels.sk_decoder_pass(self._c, batch.c)
        return logits, tapped

    def run_rounds(
        self,
        rounds: Sequence[RoundRows],
        taps: Sequence[int] = (),
        growing: CGrowing | None = None,
        drafter: int | None = None,
        ends: Collection[int] = (),
    ) -> int:
        """Grow drafts, score all rows and their drafts, and judge the rows that are not held; then the same again.

        Args:
            rounds: memory of `round_memory`, for as many rounds as may be run; the first one is filled.
            taps: as for `run`.
            growing: the drafts of all rows, if they are grown now.
            drafter: `sk_drafter` that drafts, or that takes in what was accepted between rounds.
            ends: tokens that end a reply, and with it the rounds.

        Returns:
            How many rounds were run (`sk_rounds_run`); their results are set.

        Raises:
            KernelError: arguments do not fit, or a later round fails; nothing is decided, but texts for penalties may
                have grown.
        """
        first, c_ends = rounds[0], array("q", ends)
        if taps:
            first.c.tap_count, first.c.taps = len(taps), _c_taps(tuple(taps)).buffer_info()[0]
        first.c.growing = growing and pointer(growing)
        ran: int = self._kernels.sk_rounds_run(
            self._c, drafter, first.c, len(rounds), c_ends.buffer_info()[0], len(c_ends)
        )
        return ran

    def move(self, slot: int, sources: Sequence[int], target: int) -> None:
        """Copy columns of a slot, in ascending order, to `target` and the columns after it.

        Raises:
            KernelError: one is not in the cache, or before its target.
        """
        columns = array("i", sources)
        self._kernels.sk_decoder_move(self._c, slot, columns.buffer_info()[0], len(columns), target)


@lru_cache
def _c_taps(taps: tuple[int, ...]) -> array[int]:
    """int32 array, kept alive by the cache."""
    return array("i", taps)
