"""Recipes: what the kernels need to draft by themselves at the beginning of a round."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from specchat.engine.decoding.draft import RowOrder, Support
from specchat.engine.kernels.draft_head import TargetStates
from specchat.engine.kernels.text_memory import TextMemory
from specchat.engine.sequence.sequence import SequenceState


@dataclass(frozen=True, eq=False, slots=True)
class TextRecipe:
    """Drafts from the text of a row, where it repeats."""

    name: str
    """Name of such drafts in records."""
    marks: array[int]
    """`TokenMark` of each of the V tokens."""
    first: int
    """Bucket of grade 0."""
    least: int
    """Least grade of the first token of a draft."""
    memory: Callable[[SequenceState], TextMemory]
    """The text of a row."""
    has_more: Callable[[SequenceState], bool]
    """Whether other texts continue a row's text, so that the kernels cannot draft for it."""


@dataclass(frozen=True, eq=False, slots=True)
class HeadRecipe:
    """Trees that a draft head grows."""

    name: str
    """Name of such drafts in records."""
    address: int
    """`sk_head`."""
    width: int
    """Width of the target's hidden states that it reads."""
    deepest: int
    """Maximum number of positions."""
    support: Support
    take_unread: Callable[[Sequence[SequenceState]], list[int]]
    """The first place that each row has to read; from then on they count as read."""
    has_read: Callable[[int, int], None]
    """Called with a slot and the number of places that have been read."""
    take_states: Callable[[], Sequence[TargetStates]]
    """Hidden states of the target that it has not read; from then on they count as read."""


@dataclass(frozen=True, eq=False, slots=True)
class Recipe:
    """Drafts from the text of a row where it repeats, else by a head; the empty recipe drafts nothing."""

    text: TextRecipe | None = None
    head: HeadRecipe | None = None
    named: Callable[[], bool] = lambda: False
    """Whether records name what drafted."""

    def covers(self, order: RowOrder) -> bool:
        """Whether the kernels can draft for a row; a head has no chains, which lenience needs."""
        if self.head and not order.row.request.sampling.lossless:
            return False
        return self.text is None or not self.text.has_more(order.row)

    def joined(self, other: Recipe, first: int) -> Recipe:
        """This recipe and another one, whose buckets are moved by `first`."""
        text = other.text and replace(other.text, first=other.text.first + first)
        return Recipe(self.text or text, self.head or other.head)
