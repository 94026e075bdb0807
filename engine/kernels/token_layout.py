"""Layout of the tokens of one pass: cache slots, positions and visible columns, for chains and trees alike."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

from specchat.engine.kernels.library import KernelError
from specchat.engine.kernels.structures import CBatch


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
