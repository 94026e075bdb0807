"""Verification of greedy rows where the target's likeliest tokens are on the host: the draft is right or it is not."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.engine.runner.tree import BRANCHES, Tree
from specchat.engine.sampling.rng import Stream, uniform
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.speculation.verify.outcome import Outcome


def compare(row: SequenceState, drafted: Sequence[int], tree: Tree | None, best: Sequence[int], gamma: int) -> Outcome:
    """What becomes of a row's draft: `VerifiedChains` or `VerifiedTrees` for one greedy row.

    Args:
        row: lossless, and without penalties.
        drafted: [K].
        tree: how they follow each other; None for a chain.
        best: [K + 1], the target's likeliest token behind the row's last token and behind every drafted one.
        gamma: draft length asked for.
    """

    def u(index: int) -> float:
        return uniform(row.seed, row.rounds, Stream.ACCEPT, index)

    if tree is None:
        accepted = 0
        while accepted < len(drafted) and drafted[accepted] == best[accepted]:
            accepted += 1
        tested = min(accepted + 1, len(drafted))
        right = [float(i < accepted) for i in range(tested)]
        return Outcome(
            gamma=gamma,
            drafted=list(drafted),
            accepted=accepted,
            last=best[accepted],
            p=right,
            q=[1.0] * tested,
            u=[u(i) for i in range(tested)],
            beta=right,
            detail=[],
            broken=min(best) < 0,
        )
    path = _path(drafted, tree, best)
    decided: list[tuple[int, float, float, float]] = []
    refused: list[list[tuple[int, float, float, float]]] = []
    for place, parent in enumerate((0, *path)):
        children = tree.children[parent]
        if not children:
            break
        offered = [
            (drafted[child - 1], float(drafted[child - 1] == best[parent]), 1.0, u(place * BRANCHES + rank))
            for rank, child in enumerate(children)
        ]
        kept = children.index(path[place]) if place < len(path) else None
        decided.append(offered[kept or 0])
        refused.append(offered[1:] if kept is None else offered[:kept])
    end = path[-1] if path else 0
    line = tree.line(tree.children[end][0]) if len(decided) > len(path) else []
    return Outcome(
        gamma=gamma,
        drafted=[drafted[token - 1] for token in (*path, *line)],
        accepted=len(path),
        last=best[end],
        p=[p for _, p, _, _ in decided],
        q=[1.0] * len(decided),
        u=[each for _, _, _, each in decided],
        beta=[p for _, p, _, _ in decided],
        detail=[],
        broken=min(best) < 0,
        refused=refused,
        offered=len(tree),
        path=path,
    )


def _path(drafted: Sequence[int], tree: Tree, best: Sequence[int]) -> list[int]:
    """The tokens that are the target's own, from the root on."""
    path: list[int] = []
    end = 0
    while True:
        kept = next((child for child in tree.children[end] if drafted[child - 1] == best[end]), None)
        if kept is None:
            return path
        path.append(kept)
        end = kept
