"""The tokens of a pass, and where they stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from specchat.engine.kernels.library import KernelError
from specchat.engine.kernels.structures import CBatch

Ints = NDArray[np.int32]


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
    """Columns that are seen behind the prefix, by position; the token itself always is."""

    @classmethod
    def plain(cls, slots: Sequence[int], starts: Sequence[int], lengths: Sequence[int]) -> Chains:
        """Rows of `lengths` tokens, each a chain from its start."""
        if len(slots) == 1:
            positions = np.arange(starts[0], starts[0] + lengths[0], dtype=np.int32)
            of_slots = np.full(lengths[0], slots[0], dtype=np.int32)
        else:
            parts = [np.arange(s, s + n, dtype=np.int32) for s, n in zip(starts, lengths, strict=True)]
            positions = np.concatenate(parts)
            of_slots = np.repeat(np.asarray(slots, dtype=np.int32), lengths)
        return cls(
            slots=of_slots,
            positions=positions,
            columns=positions,
            prefixes=positions,
            ancestor_offsets=np.zeros(len(positions) + 1, dtype=np.int32),
            ancestors=np.zeros(0, dtype=np.int32),
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

    def __init__(self, tokens: NDArray[np.int64], chains: Chains, judged: Ints, threads: int) -> None:
        count = len(tokens)
        parts = [getattr(chains, name) for name in _PARTS]
        for name, part in zip(_PARTS, parts, strict=True):
            if name != "ancestors" and len(part) != count + (name == "ancestor_offsets"):
                raise KernelError(f"{name} does not fit a pass over {count} tokens")
        if count and chains.ancestor_offsets[-1] > len(chains.ancestors):
            raise KernelError("ancestor_offsets points beyond the ancestors")
        # One behind the other: beside a short pass each call into numpy is felt.
        flat = np.concatenate(parts, dtype=np.int32, casting="unsafe")
        places = accumulate(map(len, parts[:-1]), initial=0)
        first, size = flat.ctypes.data, flat.itemsize
        addresses = {name: first + size * place for name, place in zip(_PARTS, places, strict=True)}
        tokens = np.ascontiguousarray(tokens, dtype=np.int64)
        judged = np.ascontiguousarray(judged, dtype=np.int32)
        self._kept = (flat, tokens, judged)
        self.c = CBatch(
            tokens=count,
            ids=tokens.ctypes.data,
            judged_count=len(judged),
            judged=judged.ctypes.data,
            threads=threads,
            **addresses,
        )
        """Valid while this object lives; what comes out of the pass has no place yet."""


_PARTS = tuple(field.name for field in fields(Chains))
