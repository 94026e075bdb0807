"""Copy drafter: what followed the last tokens the last time they occurred in the text is copied from there.

Leviathan et al. 2023, section 3.6: "an approximation model that simply copies tokens from the context in case we find
a matching prefix". It is the simplest of its kind: the n-gram drafter counts what followed, and asks again for every
token; the suffix drafter looks for longer matches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from specchat.engine.decoding.drafter import DrafterProfile
from specchat.engine.drafters.context import BuildContext
from specchat.engine.drafters.text_drafter import ChainTextDrafter

LONGEST = 3
"""Tokens of the longest match that is looked for."""


class CopyPredictor:
    """A text, and where each run of up to `LONGEST` tokens stood last in it.

    Args:
        ends: tokens after which nothing is drafted: the reply would be over.
        never: tokens that are not drafted: turn marks of the chat template, which occur in prompts, not in replies.
    """

    def __init__(self, ends: Collection[int] = (), never: Collection[int] = ()) -> None:
        self._ends = ends
        self._never = never
        self._text: list[int] = []
        self._behind: dict[tuple[int, ...], int] = {}
        self.tokens = 0
        """Tokens so far."""

    def extend(self, tokens: Iterable[int]) -> None:
        """Note where the runs before each token end, which can now be copied from."""
        for token in tokens:
            for length in range(1, min(LONGEST, len(self._text)) + 1):
                self._behind[tuple(self._text[-length:])] = len(self._text)
            self._text.append(token)
            self.tokens += 1

    def predict(self, count: int) -> tuple[list[int], list[int]]:
        """Up to `count` tokens and, for each of them, the length of the match that they followed."""
        for length in range(min(LONGEST, len(self._text)), 0, -1):
            place = self._behind.get(tuple(self._text[-length:]))
            if place is not None:
                copied = self._from(place, count)
                return copied, [length] * len(copied)
        return [], []

    def _from(self, place: int, count: int) -> list[int]:
        copied: list[int] = []
        for token in self._text[place : place + count]:
            if token in self._never:
                break
            copied.append(token)
            if token in self._ends:
                break
        return copied


class CopyDrafter(ChainTextDrafter[CopyPredictor]):
    """One text per row.

    Args:
        ends: tokens after which nothing is drafted.
        never: tokens that are not drafted.
    """

    name = "copy"
    profile = DrafterProfile(buckets=tuple(range(1, LONGEST + 1)))
    """A token's bucket is the length of the match."""
    chunk = 4096
    """Some 10 ms."""

    def __init__(self, ends: Collection[int] = (), never: Collection[int] = ()) -> None:
        super().__init__(lambda: CopyPredictor(ends, never))


def build(context: BuildContext, name: str) -> CopyDrafter:  # noqa: ARG001
    """The drafter for an engine."""
    return CopyDrafter(context.model.eos_ids, context.never)
