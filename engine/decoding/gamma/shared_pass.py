"""Which tokens of several rows' drafts to verify together in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


class SharedPass:
    """The drafts of a batch in the order in which a growing pass takes their tokens in.

    A padded pass takes one more token of every row at once. A ragged one takes one more of one row: the likeliest, of
    each row in its order.

    Args:
        chances: per row, the probability that each token is accepted.
        ragged: the pass is.
    """

    def __init__(self, chances: Sequence[Sequence[float]], *, ragged: bool) -> None:
        self._rows = len(chances)
        self._order: list[int] = []
        """The row of each further token, of a ragged pass."""
        self.gains: list[float] = []
        """Tokens to be expected of each thing taken in."""
        self.depths: Sequence[int]
        """Tokens of the longest row by then."""
        if ragged and len(chances) > 1:
            self._merge(chances)
        elif len(chances) == 1:
            self.gains, self.depths = list(chances[0]), range(1, len(chances[0]) + 1)
        else:
            self.gains = [0.0] * max(map(len, chances), default=0)
            for row in chances:
                for i, chance in enumerate(row):
                    self.gains[i] += chance
            self.depths = range(1, len(self.gains) + 1)

    def counts(self, size: int) -> list[int]:
        """Tokens of each row, as far as it has them, in a pass that has taken in so much."""
        if not self._order:
            return [size] * self._rows
        counts = [0] * self._rows
        for row in self._order[:size]:
            counts[row] += 1
        return counts

    def _merge(self, chances: Sequence[Sequence[float]]) -> None:
        # A token is no likelier than what it follows; in a tree, one that comes later may be likelier.
        steady = [list(accumulate(row, min)) for row in chances]
        found = [(-chance, i, place) for i, row in enumerate(steady) for place, chance in enumerate(row)]
        found.sort()
        self._order = [i for _, i, _ in found]
        self.gains = [chances[i][place] for _, i, place in found]
        self.depths = list(accumulate((place + 1 for _, _, place in found), max))
