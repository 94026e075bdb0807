"""What a drafter had for one token of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from specchat.engine.decoding.outcome import Outcome

LIKELY = 0.5
"""β from which on the drafter counts as having a token of a sampled text."""


class Place(NamedTuple):
    """One token of a text, as the round had it that emitted it."""

    depth: int
    """Its place in the draft, from 0 on."""
    offered: tuple[int, ...]
    """Token ids that were proposed for it and judged, the likeliest first; none behind the end of a draft."""
    beta: float
    """Probability that one of them is accepted: of a greedy text 0 or 1."""

    @property
    def had(self) -> bool:
        """Whether the token came out of the draft; of a sampled text, whether that is likely."""
        return self.beta >= LIKELY


def places_of(outcome: Outcome, emitted: Sequence[int]) -> list[Place]:
    """The places of the tokens that a round emitted."""
    return [
        Place(depth, _offered(outcome, depth), outcome.beta[depth] if depth < len(outcome.beta) else 0.0)
        for depth in range(len(emitted))
    ]


def _offered(outcome: Outcome, depth: int) -> tuple[int, ...]:
    if depth >= len(outcome.p):
        return ()
    others = [token for token, *_ in outcome.refused[depth]] if outcome.refused else []
    decided = outcome.drafted[depth]
    return tuple(dict.fromkeys((*others, decided) if depth < outcome.accepted else (decided, *others)))
