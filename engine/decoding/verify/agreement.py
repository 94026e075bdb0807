"""Verification of greedy rows where the target's likeliest tokens are on the host: the draft is right or it is not."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.engine.decoding.tree import BRANCHES, Tree, chain
from specchat.engine.decoding.verify.outcome import Outcome, outcome_of
from specchat.engine.sampling.rng import Stream, uniform
from specchat.engine.sequence.sequence import SequenceState


def compare(row: SequenceState, drafted: Sequence[int], tree: Tree | None, best: Sequence[int], gamma: int) -> Outcome:
    """What becomes of a row's draft: `VerifiedChains` or `VerifiedTrees` for one greedy row.

    Args:
        row: lossless, and without penalties.
        drafted: [K].
        tree: how they follow each other; None for a chain.
        best: [K + 1], the target's likeliest token behind the row's last token and behind every drafted one.
        gamma: draft length asked for.
    """

    def u(place: int, rank: int) -> float:
        return uniform(row.seed, row.rounds, Stream.ACCEPT, place if tree is None else place * BRANCHES + rank)

    shape = chain(len(drafted)) if tree is None else tree
    path, chances, beta, end = list[int](), list[tuple[float, float]](), list[float](), 0
    while children := shape.children[end]:
        right = [drafted[child - 1] == best[end] for child in children]
        judged = right.index(True) + 1 if any(right) else len(right)
        chances += [(float(each), 1.0) for each in right[:judged]]
        beta.append(float(any(right)))
        if not any(right):
            break
        end = children[judged - 1]
        path.append(end)
    return outcome_of(gamma, drafted, tree, path, chances, u, beta, best[end], broken=min(best) < 0)
