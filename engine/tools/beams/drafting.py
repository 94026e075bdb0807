"""Drafts of beams: a beam search under an approximation q of the target, some steps ahead of it.

Leviathan et al. 2023, appendix A.4: search with M_q and a beam width u of at least w for γ steps, let M_p score all
that it met in one pass, and go on without another for as long as the w best texts under M_p are among those u. Here
the first w of the u are those that a search of width w under q would have, as the w beams of the target go on alone:
in a plain search of width u, others can crowd them out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from specchat.engine.tools.beams.guesser import Guesser, Likely
from specchat.engine.tools.beams.node import Node
from specchat.engine.tools.beams.search import Beam


@dataclass(frozen=True, slots=True)
class BeamDrafter:
    """Drafts for a search.

    Args:
        guesser: q.
        beams: w.
        width: u.
        gamma: γ, steps ahead.
        ends: tokens behind which nothing is drafted, as a text is complete with them.
    """

    guesser: Guesser
    beams: int
    width: int
    gamma: int
    ends: Collection[int]

    @property
    def looked_at(self) -> int:
        """Tokens behind a text that may matter: `width` of them, and those that end it."""
        return self.width + len(self.ends)

    def draft(self, beams: Sequence[Beam], known: Mapping[Node, Likely], steps: int) -> list[Node]:
        """Texts that beams may become: up to u for each of the next γ steps, by their last tokens.

        Args:
            beams: texts that go on.
            known: what the target itself has behind some of them.
            steps: after which the search ends anyway.
        """
        drafted: list[Node] = []
        level = list(beams)
        for _ in range(min(self.gamma, steps)):
            unknown = [beam.node for beam in level if beam.node not in known]
            guessed = self.guesser.following(unknown, self.looked_at) if unknown else []
            likely = {**known, **dict(zip(unknown, guessed, strict=True))}
            first = self._longer(level[: self.beams], likely)
            others = [*first[self.beams :], *self._longer(level[self.beams :], likely)]
            others.sort(key=_by_score)
            level = [*first[: self.beams], *others][: self.width]
            drafted += [beam.node for beam in level]
        return drafted

    def _longer(self, beams: Sequence[Beam], likely: Mapping[Node, Likely]) -> list[Beam]:
        """Texts that are one token longer, best first."""
        longer = [
            Beam(beam.node.followed_by(token), beam.score + chance)
            for beam in beams
            for token, chance in likely[beam.node]
            if token not in self.ends
        ]
        return sorted(longer, key=_by_score)


def _by_score(beam: Beam) -> float:
    return -beam.score
