"""What a draft head keeps of each token that the target has read: one state per place of every slot."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specchat.engine.device.to_device import to_device


class States:
    """States [slots, columns, d] of all slots, in `stored`.

    Args:
        like: of their type and on their device.
        slots: as many as the target's cache has.
        columns: as many as the target's cache has.
        size: d.
    """

    def __init__(self, like: Tensor, slots: int, columns: int, size: int) -> None:
        # Nothing looks at a state before it is written, so it need not take memory before.
        self.stored = like.new_empty(slots, columns, size)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` states of a slot to another."""
        self.stored[target, :length] = self.stored[source, :length]

    def put(self, slots: Sequence[int], starts: Sequence[int], states: Tensor) -> None:
        """Keep states [B, T, d] of the T tokens from `starts` [B] on in `slots` [B]: unwanted ones are
        overwritten before anything looks at them."""
        device = self.stored.device
        columns = to_device(starts, device)[:, None] + torch.arange(states.shape[1], device=device)
        self.stored[to_device(slots, device)[:, None], columns] = states
