"""A round's decisions on their way to the host: one copy for the whole batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one round decided for one row, on the host, before the reply's own limits are applied."""

    gamma: int
    drafted: list[int]
    """One token for each position: those kept, then the first choices behind them."""
    accepted: int
    last: int
    p: list[float]
    q: list[float]
    u: list[float]
    beta: list[float]
    detail: list[list[int]]
    """One packed `engine.detail` per position; empty unless asked for."""
    broken: bool
    """The target's logits were not numbers; nothing else here means anything."""
    refused: list[list[tuple[int, float, float, float]]] = field(default_factory=list)
    """Of a tree: for each tested position the other tokens that were refused, each with its p, q and u."""
    offered: int = 0
    """Of a tree: how many tokens it had."""
    path: list[int] = field(default_factory=list)
    """Of a tree: the tokens kept, as the tree counts them."""


class Judged(ABC):
    """Some rows of a batch whose verdict is still on the device."""

    def __init__(self, mine: Sequence[int], packed: Tensor) -> None:
        self.mine = mine
        """Which rows of the batch."""
        self.packed = packed
        """int32 [b, n]."""

    @abstractmethod
    def outcomes(self, host: Tensor) -> list[Outcome]:
        """The outcome of each row, from `packed` on the host."""


def packed(integers: Sequence[Tensor], reals: Sequence[Tensor], details: Tensor | None) -> Tensor:
    """Columns of one dtype for `Judged`: int32 [b, n], reals as the bits of float32.

    Args:
        integers: [b] or [b, n] each.
        reals: [b, ...] each.
        details: what `engine.detail.pack` made, int32 [b, positions, n], or None.
    """
    whole = torch.cat([part.reshape(len(part), -1).int() for part in integers], dim=1)
    real = torch.cat([part.flatten(1).float() for part in reals], dim=1)
    parts = [whole, real.view(torch.int32)]
    return torch.cat(parts if details is None else [*parts, details.flatten(1)], dim=1)


def to_host(parts: Sequence[Judged], rows: int) -> list[Outcome]:
    """Everything the host needs of a batch, in the round's one copy from the device."""
    width = max(part.packed.shape[1] for part in parts)
    wide = [torch.nn.functional.pad(part.packed, (0, width - part.packed.shape[1])) for part in parts]
    host = torch.cat(wide).cpu()
    outcomes: dict[int, Outcome] = {}
    sizes = [len(part.mine) for part in parts]
    for part, values in zip(parts, torch.split(host, sizes), strict=True):
        outcomes.update(zip(part.mine, part.outcomes(values), strict=True))
    return [outcomes[i] for i in range(rows)]
