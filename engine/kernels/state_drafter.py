"""A network on packed weights that drafts from the target's hidden states."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from specchat.engine.kernels.library import library
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
