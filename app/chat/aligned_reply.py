"""The tokens of a reply, and which of two drafters had each of them. Knows of no widget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from specchat.app.chat.reply import Reply
from specchat.engine import Fate

if TYPE_CHECKING:
    from specchat.engine.tools.evaluate import Alignment

_NOT_SAID = (Fate.REJECTED, Fate.DISCARDED)


class Had(StrEnum):
    """Which of two drafters, A and B, a token came out of the draft of."""

    BOTH = "both"
    ONLY_A = "only A"
    ONLY_B = "only B"
    NEITHER = "neither"


class AlignedReply:
    """One reply, drafted along by two drafters.

    Args:
        texts: of its tokens.
        alignment: what the drafters had for each; it may end before the reply does.
    """

    def __init__(self, texts: Sequence[str], alignment: Alignment) -> None:
        self.alignment = alignment
        self.had = [_had(one.predicted, other.predicted) for one, other in zip(*alignment.places, strict=True)]
        """Of each token."""
        self.texts = list(texts[: len(self.had)])
        self.counts = Counter(self.had)

    def next(self, place: int, had: Had, step: int) -> int | None:
        """The next such token behind a place (step 1), or the last one before it (step -1); None if there is none."""
        found = range(place + 1, len(self.had)) if step > 0 else range(place - 1, -1, -1)
        return next((other for other in found if self.had[other] is had), None)


def said_texts(reply: Reply) -> list[str]:
    """The text of each token that the reply consists of."""
    return [token.text for record in reply.rounds for token in record.tokens() if token.fate not in _NOT_SAID]


def _had(one: bool, other: bool) -> Had:
    if one:
        return Had.BOTH if other else Had.ONLY_A
    return Had.ONLY_B if other else Had.NEITHER
