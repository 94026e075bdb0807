"""Shapes of trees' verdicts on a GPU: few, so that each is a CUDA graph."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest

from torch import Tensor

from specchat.engine.decoding.tree import BRANCHES, LONGEST, tree_of
from specchat.engine.decoding.verify import top_logprobs as detail
from specchat.engine.device.padding import CAPTURED
from specchat.engine.sampling.sampling_rows import ANY, SamplingFlags

WIDTH = CAPTURED[-1]
"""Tokens of trees on a GPU, padded: as many as there ever are, so that there are few shapes."""
_DEPTHS = (2, 4, 8)
"""Depths of trees on a GPU, padded."""


@dataclass(frozen=True, slots=True)
class TreeShape:
    """What a graph of trees' verdicts is made for."""

    rows: int
    vocabulary: int
    flags: SamplingFlags
    widths: tuple[int, ...]
    """Per depth, room for so many children of a node (`covering`)."""
    details: int
    """Entries per list; 0 for none."""
    merged: bool = False
    """Whether they are tested by `Trials`."""

    @classmethod
    def of(
        cls,
        rows: int,
        logits: Tensor,
        flags: SamplingFlags,
        widths: tuple[int, ...],
        *,
        details: int = 0,
        merged: bool = False,
    ) -> TreeShape:
        """The shape that serves for logits [B, T, V], with `rows` rows (`Regions.count`)."""
        if details:  # rare, so of few shapes
            flags, widths, details = ANY, _deepest(widths), detail.MOST
        else:
            flags = flags.coarse(rows)
        if merged or details or flags.all_greedy:  # of any widths: greedy verdicts do not depend on them
            widths = (BRANCHES,) * len(widths)
        return cls(rows, logits.shape[2], flags, widths, details, merged)


def covering(widths: tuple[int, ...]) -> tuple[int, ...]:
    """Room for trees of these widths (`TreeMask.widths`) and for all that are drafted: so that there are few shapes."""
    depth = next((each for each in _DEPTHS if each >= len(widths)), len(widths))
    usual = (*_usual_widths(), *[0] * depth)[:depth]
    return tuple(max(pair) for pair in zip_longest(widths, usual, fillvalue=0))


def _deepest(widths: tuple[int, ...]) -> tuple[int, ...]:
    """As `covering`, as deep as trees ever are."""
    return covering((*widths, *[0] * (_DEPTHS[-1] - len(widths))))


@lru_cache
def _usual_widths() -> tuple[int, ...]:
    """Per depth, the most children of any node of any tree that is drafted."""
    trees = [tree_of(gamma) for gamma in range(1, LONGEST + 1)]
    widths = ([max(len(tree.children[token]) for token in level) for level in tree.levels] for tree in trees)
    return tuple(map(max, zip_longest(*widths, fillvalue=0)))


def drafted_widths() -> set[tuple[int, ...]]:
    """All that `covering` gives for trees that are drafted."""
    return {covering(_usual_widths()[:depth]) for depth in range(1, LONGEST + 1)}
