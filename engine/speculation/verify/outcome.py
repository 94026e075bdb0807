"""Outcomes of a verification, and their one copy from device to host per round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specchat.engine.runner.to_device import to_device


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a round for one row, on the host, before stop strings and token limits are applied."""

    gamma: int
    drafted: list[int]
    """One token per position: the accepted ones, then the first choices behind them."""
    accepted: int
    last: int
    p: list[float]
    q: list[float]
    u: list[float]
    beta: list[float]
    detail: list[list[int]]
    """Per position, what `engine.speculation.verify.top_logprobs` packed; empty unless asked for."""
    broken: bool
    """The target's logits were not finite; the other fields are then meaningless."""
    refused: list[list[tuple[int, float, float, float]]] = field(default_factory=list)
    """Of a tree: per tested position, the other tokens that were rejected, as (token, p, q, u)."""
    offered: int = 0
    """Of a tree: number of drafted tokens; 0 for a chain."""
    path: list[int] = field(default_factory=list)
    """Of a tree: nodes of the accepted tokens."""


class Verified(ABC):
    """Verification results of b rows of a batch, still on the device."""

    def __init__(self, mine: Sequence[int], packed: Tensor) -> None:
        self.mine = mine
        """[b], indices of the rows in the batch."""
        self.packed = packed
        """[b, n], int32: everything the host needs, by `packed`."""

    @abstractmethod
    def outcomes(self, host: Tensor) -> list[Outcome]:
        """Outcome of each row.

        Args:
            host: `packed`, copied to the host; may be padded to more columns.
        """


def packed(integers: Sequence[Tensor], reals: Sequence[Tensor], details: Tensor | None) -> Tensor:
    """Pack results into one tensor [b, n], int32, with reals as float32 bits.

    Args:
        integers: [b] or [b, n] each.
        reals: [b, ...] each.
        details: [b, positions, n], int32, by `engine.speculation.verify.top_logprobs.pack`, or None.
    """
    whole = torch.cat([part.reshape(len(part), -1).int() for part in integers], dim=1)
    real = torch.cat([part.flatten(1).float() for part in reals], dim=1)
    parts = [whole, real.view(torch.int32)]
    return torch.cat(parts if details is None else [*parts, details.flatten(1)], dim=1)


def to_host(
    parts: Sequence[Verified], rows: int, ranked: Tensor | None = None
) -> tuple[list[Outcome], list[list[list[int]]]]:
    """What all rows of a batch came to, by the round's one copy from the device.

    Args:
        parts: of the batch.
        rows: B.
        ranked: [B, T, 1 + k], int32: each token of the pass and the likeliest behind it, where somebody wants them.

    Returns:
        The outcomes, and `ranked` as lists; empty without it.
    """
    width = max(part.packed.shape[1] for part in parts)
    wide = [torch.nn.functional.pad(part.packed, (0, width - part.packed.shape[1])) for part in parts]
    whole = torch.cat(wide)
    if ranked is not None:
        order = to_device([i for part in parts for i in part.mine], whole.device)
        whole = torch.cat([whole, ranked[order].flatten(1)], dim=1)
    host = whole.cpu()
    outcomes: dict[int, Outcome] = {}
    sizes = [len(part.mine) for part in parts]
    for part, values in zip(parts, torch.split(host, sizes), strict=True):
        outcomes.update(zip(part.mine, part.outcomes(values), strict=True))
    places = {i: place for place, i in enumerate(i for part in parts for i in part.mine)}
    lists = [] if ranked is None else host[:, width:].reshape(-1, *ranked.shape[1:]).tolist()
    return [outcomes[i] for i in range(rows)], [lists[places[i]] for i in range(rows)] if lists else []
