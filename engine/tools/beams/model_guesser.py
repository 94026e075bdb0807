"""Guesses of a draft model: its own distribution, from a cache of its own."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.engine.tools.beams.branch_cache import BranchCache
from specchat.engine.tools.beams.guesser import Likely, likeliest
from specchat.engine.tools.beams.node import Node, paths


class ModelGuesser:
    """A smaller model that shares the target's vocabulary.

    Args:
        cache: of the model, which has read the prompt.
        vocabulary: V of the target; what the model has beyond it is never guessed.
    """

    def __init__(self, cache: BranchCache, vocabulary: int) -> None:
        self._cache = cache
        self._vocabulary = vocabulary
        self._likely: dict[Node, Likely] = {}
        """Of texts that it has read."""

    def following(self, nodes: Sequence[Node], count: int) -> list[Likely]:
        """One pass of the model over what it has not read of these texts, if there is any."""
        fed = paths((node for node in nodes if node not in self._likely), self._cache)
        if fed:
            logits = self._cache.feed(fed)[:, : self._vocabulary]
            self._likely.update(zip(fed, likeliest(logits, count), strict=True))
        return [self._likely[node][:count] for node in nodes]

    def keep(self, ends: Sequence[Node]) -> None:
        """Drop the other texts."""
        self._cache.keep(ends)
        self._likely = {node: likely for node, likely in self._likely.items() if node in self._cache}
