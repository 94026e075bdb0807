"""Outcomes of a verification, and their one copy from device to host per round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specchat.engine.decoding.tree import Tree
from specchat.engine.device.to_device import to_device


@dataclass(slots=True)
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
    """Per position, what `engine.decoding.verify.top_logprobs` packed; empty unless asked for."""
    broken: bool
    """The target's logits were not finite; the other fields are then meaningless."""
    refused: list[list[tuple[int, float, float, float]]] = field(default_factory=list)
    """Of a tree: per tested position, the other tokens that were rejected, as (token, p, q, u)."""
    offered: int = 0
    """Of a tree: number of drafted tokens; 0 for a chain."""
    path: list[int] = field(default_factory=list)
    """Of a tree: nodes of the accepted tokens."""


def outcome_of(
    gamma: int,
    drafted: Sequence[int],
    tree: Tree | None,
    path: Sequence[int],
    chances: Sequence[tuple[float, float]],
    u: Callable[[int, int], float],
    beta: Sequence[float],
    last: int,
    *,
    broken: bool,
) -> Outcome:
    """Outcome of a row that was judged on the host.

    Args:
        gamma: draft length asked for.
        drafted: [K].
        tree: how they follow each other; None for a chain.
        path: nodes of the accepted tokens.
        chances: p(x) and q(x) of every token judged, in order: those behind a node up to the accepted one, or all.
        u: gives the uniform of a position and a rank.
        beta: per position at which tokens were judged.
        last: correction, bonus or plain token.
        broken: whether a logit was not a number.
    """
    if tree is None:
        p, q = [p for p, _ in chances], [q for _, q in chances]
        us = [u(place, 0) for place in range(len(chances))]
        return Outcome(gamma, list(drafted), len(path), last, p, q, us, list(beta), [], broken)
    left = iter(chances)
    decided: list[tuple[int, float, float, float]] = []
    refused: list[list[tuple[int, float, float, float]]] = []
    for place, parent in enumerate((0, *path)):
        children = tree.children[parent]
        if not children:
            break
        kept = children.index(path[place]) if place < len(path) else None
        judged = children if kept is None else children[: kept + 1]
        offered = [(drafted[child - 1], *next(left), u(place, rank)) for rank, child in enumerate(judged)]
        decided.append(offered[kept or 0])
        # q = 0 marks a place for which the drafter had no token left.
        refused.append([other for other in (offered[1:] if kept is None else offered[:kept]) if other[2] > 0])
    end = path[-1] if path else 0
    line = tree.line(tree.children[end][0]) if len(decided) > len(path) else []
    return Outcome(
        gamma=gamma,
        drafted=[drafted[node - 1] for node in (*path, *line)],
        accepted=len(path),
        last=last,
        p=[p for _, p, _, _ in decided],
        q=[q for _, _, q, _ in decided],
        u=[each for _, _, _, each in decided],
        beta=list(beta),
        detail=[],
        broken=broken,
        refused=refused,
        offered=len(tree),
        path=list(path),
    )


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
        details: [b, positions, n], int32, by `engine.decoding.verify.top_logprobs.pack`, or None.
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
