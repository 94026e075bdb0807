"""Drafts that are trees of fixed shape: how sure a drafter is of their tokens, known before they are drafted."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from specchat.engine.decoding.tree import BRANCHES, Tree
from specchat.engine.sequence.sequence import SequenceState

BUCKETS: Sequence[int] = range(2 * BRANCHES)
"""First choice to last for the first position, then for any later one."""
LATER: Sequence[int] = tuple(bucket for bucket in BUCKETS if bucket % BRANCHES)
"""Those of tokens that are offered next to a likelier one."""


@lru_cache
def offer(tree: Tree) -> tuple[Sequence[int], Tree]:
    """A tree with its buckets: a token's rank among those offered for its position, apart for the first position."""
    ranks = [tree.children[parent].index(child) for child, parent in enumerate(tree.parents, 1)]
    return [rank + BRANCHES * (tree.depths[i] > 1) for i, rank in enumerate(ranks, 1)], tree


def may_branch(row: SequenceState) -> bool:
    """Whether a row's draft may be a tree: not where its logits or its acceptance are special."""
    sampling = row.request.sampling
    return sampling.lossless and not sampling.adjusts
