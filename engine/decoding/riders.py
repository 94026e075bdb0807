"""Look-ahead positions that ride in a verifying pass, behind the drafts that it verifies.

Behind every token of a chain, the row's last one included, a row may have n positions that read trained embeddings
instead of tokens. They see what precedes them as tokens of a tree do, so that whichever part of the chain is accepted,
the target has already said what it expects behind it. No later token sees them: their columns of the cache lie behind
the chain's and are written over by the next pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from specchat.engine.decoding.proposal import Proposal
from specchat.engine.decoding.tree import Tree, chain


@lru_cache
def riding_tree(length: int, count: int) -> Tree:
    """A chain of `length` drafted tokens; behind it, for each of its tokens in order, the `count` that ride there."""
    parents = list(range(length))
    for token in range(length + 1):
        first = len(parents) + 1
        parents += [token, *range(first, first + count - 1)]
    return Tree(tuple(parents))


@dataclass(frozen=True, slots=True)
class Riders:
    """What rides in one pass."""

    embeddings: Sequence[Tensor | None]
    """Per row, what the positions behind each token read [n, d]; None where nothing rides, as behind trees."""
    foresee: Callable[[int, int, Tensor], None]
    """Told of a row with riders how many tokens were accepted, and the logits [n, V] of those behind the last."""

    def trees(self, proposal: Proposal) -> list[Tree]:
        """How the tokens of each row follow each other, and what rides."""
        trees = proposal.trees or [None] * len(self.embeddings)
        return [
            tree or chain(length) if ridden is None else riding_tree(length, len(ridden))
            for tree, length, ridden in zip(trees, proposal.lengths, self.embeddings, strict=True)
        ]

    def hand_over(self, accepted: Sequence[int], lengths: Sequence[int], logits: Sequence[Tensor] | Tensor) -> None:
        """Say what the target expects behind what was accepted.

        Args:
            accepted: drafted tokens, per row.
            lengths: of the drafts.
            logits: [T, V] of each row.
        """
        for row, (count, length, ridden) in enumerate(zip(accepted, lengths, self.embeddings, strict=True)):
            if ridden is not None:
                first = 1 + length + count * len(ridden)
                self.foresee(row, count, logits[row][first : first + len(ridden)].clone())

    def entered(self, embedded: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        """What the first layer reads of each row [T, d], with what rides behind it.

        Args:
            embedded: [B, 1 + K, d], embeddings of each row's last token and its draft.
            lengths: of the drafts.
        """
        read = []
        for row, length, ridden in zip(embedded, lengths, self.embeddings, strict=True):
            own = row[: 1 + length]
            read.append(own if ridden is None else torch.cat([own, ridden.to(own).repeat(len(own), 1)]))
        return read
