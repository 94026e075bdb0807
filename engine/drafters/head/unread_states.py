"""Hidden states of the target that a drafter on the kernels has not read yet."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specchat.engine.backends.packed_runner import RoundStates
from specchat.engine.kernels.round import TargetStates
from specchat.engine.kernels.state_drafter import StateDrafter

_MOST_UNREAD = 64
"""Tokens whose hidden states are kept until they are needed: rounds that do not draft need not wait for the drafter."""


class UnreadStates:
    """Hidden states that wait to be read.

    Args:
        drafter: reads them.
    """

    def __init__(self, drafter: StateDrafter) -> None:
        self._drafter = drafter
        self._states: list[TargetStates] = []
        self._tokens = 0

    def absorb(
        self,
        slots: Sequence[int],
        starts: Sequence[int],
        tapped: Tensor | Sequence[Tensor],
        lengths: Sequence[int] | None = None,
    ) -> None:
        """Keep the states of the tokens that are wanted; those of a round are read at once.

        Args:
            slots: [B].
            starts: [B], the position of each row's first token.
            tapped: [B, T, taps x d], or of each row its own [T, taps x d].
            lengths: [B], how many of each row's T tokens are wanted; all if None.
        """
        if isinstance(tapped, RoundStates):
            self._drafter.absorb(tapped.rows)
            return
        counts = [len(part) for part in tapped] if lengths is None else lengths
        for part, slot, start, count in zip(tapped, slots, starts, counts, strict=True):
            self._states.append(TargetStates(slot, start, part, count))
            self._tokens += count
        if self._tokens >= _MOST_UNREAD:
            self.flush()

    def flush(self) -> None:
        """Let the drafter read all of them."""
        if states := self.take():
            self._drafter.write_states(states, torch.get_num_threads())

    def take(self) -> Sequence[TargetStates]:
        """All of them; from then on they count as read."""
        states, self._states, self._tokens = self._states, [], 0
        return states
