"""The tokens of a pass, and where they stand."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from specchat.engine.kernels.library import KernelError
from specchat.engine.kernels.structures import CBatch


@dataclass(frozen=True, eq=False, slots=True)
class TokenLayout:
    """Where the tokens of a pass stand, flat: those of a slot next to each other."""

    slots: Sequence[int]
    """[n]"""
    positions: Sequence[int]
    """[n], for the rotary embedding, and the order in which keys are seen."""
    columns: Sequence[int]
    """[n], of the cache, where keys and values are written."""
    prefixes: Sequence[int]
    """[n], how many columns are seen from 0 on; they hold those positions."""
    ancestor_offsets: Sequence[int]
    """[n + 1], the part of `ancestors` that is each token's."""
    ancestors: Sequence[int]
    """Columns that are seen behind the prefix, by position; the token itself always is."""

    @classmethod
    def chains(cls, slots: Sequence[int], starts: Sequence[int], lengths: Sequence[int]) -> TokenLayout:
        """Rows of `lengths` tokens, each a chain from its start."""
        positions = [start + i for start, length in zip(starts, lengths, strict=True) for i in range(length)]
        return cls(
            slots=[slot for slot, length in zip(slots, lengths, strict=True) for _ in range(length)],
            positions=positions,
            columns=positions,
            prefixes=positions,
            ancestor_offsets=[0] * (len(positions) + 1),
            ancestors=[],
        )


class Batch:
    """The tokens of one pass as the library takes them.

    Args:
        tokens: [n].
        chains: where they stand.
        judged: [m], the tokens whose logits are wanted.
        threads: how many compute, the caller included.

    Raises:
        KernelError: lengths do not fit.
    """

    def __init__(self, tokens: Sequence[int], chains: TokenLayout, judged: Sequence[int], threads: int) -> None:
        count = len(tokens)
        each = (chains.slots, chains.positions, chains.columns, chains.prefixes)
        if any(len(part) != count for part in each) or len(chains.ancestor_offsets) != count + 1:
            raise KernelError(f"chains do not fit a pass over {count} tokens")
        if count and chains.ancestor_offsets[-1] > len(chains.ancestors):
            raise KernelError("ancestor_offsets points beyond the ancestors")
        # In two arrays of the standard library: beside a short pass each call into numpy is felt.
        parts = (*each, chains.ancestor_offsets, chains.ancestors, judged)
        ids, places = array("q", tokens), array("i")
        for part in parts:
            places.extend(part)
        self._kept = (ids, places)
        first, size = places.buffer_info()[0], places.itemsize
        slots, positions, columns, prefixes, offsets, ancestors, wanted = (
            first + size * place for place in accumulate(map(len, parts[:-1]), initial=0)
        )
        self.c = CBatch(
            tokens=count,
            ids=ids.buffer_info()[0],
            slots=slots,
            positions=positions,
            columns=columns,
            prefixes=prefixes,
            ancestor_offsets=offsets,
            ancestors=ancestors,
            judged_count=len(judged),
            judged=wanted,
            threads=threads,
        )
        """Valid while this object lives; what comes out of the pass has no place yet."""
