"""Outcome of a round for one row, on the host, before stop strings and token limits are applied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from specchat.engine.decoding.tree import Tree

Offer = tuple[int, float, float, float]
"""A tested token with its p, q and u."""


@dataclass(slots=True)
class Outcome:
    """Outcome of a round for one row."""

    gamma: int
    drafted: list[int]
    """One token per position: the accepted ones, then the first candidates after them."""
    accepted: int
    last: int
    """Correction, bonus or plain token."""
    p: list[float]
    q: list[float]
    u: list[float]
    beta: list[float]
    path: list[int]
    """Nodes of the accepted tokens."""
    broken: bool
    """The target's logits were not finite; the other fields are then undefined."""
    refused: list[list[Offer]] = field(default_factory=list)
    """Of a tree: per tested position, the other tokens that were rejected."""
    offered: int = 0
    """Of a tree: number of drafted tokens; 0 for a chain."""
    detail: list[list[int]] = field(default_factory=list)
    """Per position, what `engine.decoding.top_logprobs` packed; empty unless the request asks for it."""

    @property
    def moves(self) -> bool:
        """Whether the accepted tokens are not the first ones of the draft, so that their cache columns move."""
        return bool(self.path) and self.path[-1] > len(self.path)


def tested_candidates(tree: Tree, path: Sequence[int]) -> list[int]:
    """How many candidates were tested per position: up to the accepted one, or all of them."""
    counts = []
    for place, node in enumerate((0, *path)):
        nodes = [candidate.node for candidate in tree.candidates[node]]
        if nodes:
            counts.append(nodes.index(path[place]) + 1 if place < len(path) else len(nodes))
    return counts


def outcome_of(
    gamma: int,
    drafted: Sequence[int],
    tree: Tree,
    path: Sequence[int],
    chances: Iterable[tuple[float, float]],
    u: Callable[[int, int], float],
    beta: Sequence[float],
    last: int,
    *,
    broken: bool,
    detail: list[list[int]] | None = None,
) -> Outcome:
    """Outcome of one row.

    Args:
        gamma: requested draft length.
        drafted: [K].
        tree: layout of the K tokens.
        path: nodes of the accepted tokens.
        chances: p(x) and q(x) of every tested candidate, in order (`tested_candidates`).
        u: the uniform of a position and a candidate's rank.
        beta: per tested position.
        last: correction, bonus or plain token.
        broken: whether a logit was not a number.
        detail: top-logprobs per position.
    """
    left = iter(chances)
    decided: list[Offer] = []
    refused: list[list[Offer]] = []
    for place, count in enumerate(tested_candidates(tree, path)):
        node = path[place - 1] if place else 0
        candidates = tree.candidates[node][:count]
        offers = [(drafted[each.node - 1], *next(left), u(place, rank)) for rank, each in enumerate(candidates)]
        decisive = count - 1 if place < len(path) else 0
        decided.append(offers[decisive])
        # q = 0 marks a candidate for which the drafter had no token left.
        refused.append([offer for i, offer in enumerate(offers) if i != decisive and offer[2] > 0])
    line: list[int] = []
    if len(decided) > len(path):
        line = tree.line(tree.candidates[path[-1] if path else 0][0].node)
    return Outcome(
        gamma=tree.depth if tree.branches else gamma,
        drafted=[drafted[node - 1] for node in (*path, *line)],
        accepted=len(path),
        last=last,
        p=[offer[1] for offer in decided],
        q=[offer[2] for offer in decided],
        u=[offer[3] for offer in decided],
        beta=list(beta[: len(decided)]),
        path=list(path),
        broken=broken,
        refused=refused if tree.branches else [],
        offered=len(tree) if tree.branches else 0,
        detail=detail or [],
    )
