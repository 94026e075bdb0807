"""Token recycling: what the target found likely behind a token last time is drafted behind it (Luo et al. 2024).

arXiv 2408.08696, section 3: an adjacency matrix holds the top-k tokens behind every token, as the target's latest pass
over it gave them, those of rejected drafts too; a draft is a tree of fixed shape, filled from the matrix breadth
first. Here the matrix is a request's own, so that a reply depends on nothing but its request, and the text's own pairs
of tokens stand in it until the target has been there. Nothing is trained, and any target can be drafted for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from specchat.engine.decoding.gamma.budget import Budget
from specchat.engine.decoding.proposal import Draft, Offers
from specchat.engine.decoding.tree import BRANCHES, LONGEST, Tree, chain, tree_of
from specchat.engine.drafters.fixed_trees import BUCKETS, LATER, may_branch, offer
from specchat.engine.drafters.text_drafter import TextDrafter
from specchat.engine.sequence.sequence import SequenceState


class SuccessorTable:
    """What follows each token, likeliest first: at most `BRANCHES` tokens behind each of V."""

    def __init__(self) -> None:
        self._likeliest: dict[int, Sequence[int]] = {}
        self._pairs: dict[int, int] = {}
        self._last: int | None = None
        self.tokens = 0
        """Tokens of the text whose pairs are known."""

    def extend(self, tokens: Iterable[int]) -> None:
        """Note what followed each token of the text, which goes on with these."""
        for token in tokens:
            if self._last is not None:
                self._pairs[self._last] = token
            self._last = token
            self.tokens += 1

    def learn(self, tokens: Sequence[int], likeliest: Sequence[Sequence[int]]) -> None:
        """Replace what is known of these tokens by the target's latest."""
        self._likeliest.update(zip(tokens, likeliest, strict=True))

    def fill(self, last: int, shape: Tree, ends: Collection[int]) -> tuple[list[int], list[int], Tree]:
        """Tokens behind `last` in a tree's places, as far as they are known, and nothing behind the end of a reply.

        Returns:
            The tokens, the place in `shape` that each has, and the tree of those places.
        """
        tokens, places, parents = [last], [0], []
        place_of = {0: 0}
        for place, parent in enumerate(shape.parents, 1):
            if parent not in place_of or (parent and tokens[place_of[parent]] in ends):
                continue
            known = self._behind(tokens[place_of[parent]])
            rank = shape.children[parent].index(place)
            if rank >= len(known):
                continue
            place_of[place] = len(tokens)
            parents.append(place_of[parent])
            tokens.append(known[rank])
            places.append(place)
        return tokens[1:], places[1:], Tree(tuple(parents))

    def _behind(self, token: int) -> Sequence[int]:
        known = self._likeliest.get(token)
        if known is None:
            return [self._pairs[token]] if token in self._pairs else []
        return known


class RecyclingDrafter(TextDrafter[SuccessorTable]):
    """One table per row.

    Args:
        ends: tokens behind which nothing is drafted: the reply would be over.
        branches: whether to offer several tokens for a position; else drafts are chains.
    """

    name = "recycling"
    buckets = BUCKETS
    later = LATER
    successors = BRANCHES
    at_once = 1 << 16
    """Some 10 ms."""

    def __init__(self, ends: Collection[int] = (), *, branches: bool = True) -> None:
        super().__init__(SuccessorTable)
        self._ends = ends
        self._branches = branches

    def offers(self, row: SequenceState) -> Offers | None:
        """A tree of fixed shape, or a chain; places of which nothing is known stay empty."""
        return lambda gamma: offer(self._shape(row, gamma))

    def propose(
        self,
        rows: Sequence[SequenceState],
        gammas: Sequence[int],
        budgets: Sequence[Budget | None] = (),  # noqa: ARG002
    ) -> Draft:
        """The filled tree of each row."""
        tokens: list[list[int]] = []
        buckets: list[list[int]] = []
        trees: list[Tree | None] = []
        for row, gamma in zip(rows, gammas, strict=True):
            shape = self._shape(row, gamma)
            found, places, tree = self.text(row).fill(row.tokens[-1], shape, self._ends)
            grades = offer(shape)[0]
            tokens.append(found)
            buckets.append([grades[place - 1] for place in places])
            trees.append(None if tree == chain(len(tree)) else tree)
        return Draft(tokens, [len(each) for each in tokens], buckets=buckets, trees=trees)

    def witness(self, row: SequenceState, tokens: Sequence[int], likeliest: Sequence[Sequence[int]]) -> None:
        """The target's likeliest tokens replace those that were known."""
        self.text(row).learn(tokens, likeliest)

    def _shape(self, row: SequenceState, gamma: int) -> Tree:
        branches = self._branches and may_branch(row) and 0 < gamma <= LONGEST
        return tree_of(gamma) if branches else chain(gamma)
