"""Drafts of beams: a beam search under an approximation q of the target, some steps ahead of it.

Leviathan et al. 2023, appendix A.4: search with M_q and a beam width u of at least w for γ steps, let M_p score all
that it met in one pass, and go on without another for as long as the w best texts under M_p are among those u. Here
the first w of the u are those that a search of width w under q would have, as the w beams of the target go on alone:
in a plain search of width u, others can crowd them out.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from specchat.engine.tools.beams.guesser import Likely, likeliest
from specchat.engine.tools.beams.look_ahead import LookAhead
from specchat.engine.tools.beams.model_guesser import ModelGuesser
from specchat.engine.tools.beams.node import Node
from specchat.engine.tools.beams.search import Beam


class BeamDrafter:
    """Drafts for one search.

    Args:
        guesser: q.
        beams: w.
        width: u.
        gamma: γ, steps ahead; None for as many as pay.
        ends: tokens behind which nothing is drafted, as a text is complete with them.
    """

    def __init__(self, guesser: ModelGuesser, beams: int, width: int, gamma: int | None, ends: Collection[int]) -> None:
        self._guesser = guesser
        self._beams = beams
        self._width = width
        self._gamma = gamma
        self._ends = ends
        self._ahead = LookAhead(width)
        self._asked = 0
        """γ of the latest draft."""
        self._steps = 0
        """Of the search since then."""

    def draft(self, beams: Sequence[Beam], seen: Mapping[Node, Tensor], left: int) -> list[Node]:
        """Texts that beams may become: up to u for each of the next γ steps, by their last tokens.

        Args:
            beams: texts that go on.
            seen: logits [V] that the target itself has behind some of them.
            left: steps after which the search ends anyway.
        """
        self._ahead.judged(self._asked, self._steps)
        self._asked = min(self._ahead.choose() if self._gamma is None else self._gamma, left)
        self._steps = 0
        started = time.perf_counter()
        levels = self._search(beams, seen) if self._asked else []
        self._ahead.drafted(levels, time.perf_counter() - started)
        return [node for level in levels for node in level]

    def learn(self, nodes: Sequence[Node], seconds: float) -> None:
        """The target has read these tokens in this time."""
        self._ahead.read(len(nodes), seconds)

    def went_on(self, beams: Sequence[Beam]) -> None:
        """The search has taken a step, to these beams."""
        self._steps += 1
        self._ahead.went_on(beam.node for beam in beams)

    def _search(self, beams: Sequence[Beam], seen: Mapping[Node, Tensor]) -> list[list[Node]]:
        """The texts for each of the steps."""
        looked_at = self._width + len(self._ends)
        self._guesser.keep([beam.node for beam in beams])
        known: dict[Node, Likely] = {}
        if seen:
            known.update(zip(seen, likeliest(torch.stack([*seen.values()]), looked_at), strict=True))
        levels: list[list[Node]] = []
        level = list(beams)
        for _ in range(self._asked):
            unknown = [beam.node for beam in level if beam.node not in known]
            if unknown:
                known.update(zip(unknown, self._guesser.following(unknown, looked_at), strict=True))
            first = self._longer(level[: self._beams], known)
            others = [*first[self._beams :], *self._longer(level[self._beams :], known)]
            level = [*first[: self._beams], *sorted(others, key=_by_score)][: self._width]
            levels.append([beam.node for beam in level])
        return levels

    def _longer(self, beams: Sequence[Beam], known: Mapping[Node, Likely]) -> list[Beam]:
        """Texts that are one token longer, best first."""
        longer = [
            Beam(beam.node.followed_by(token), beam.score + chance)
            for beam in beams
            for token, chance in known[beam.node]
            if token not in self._ends
        ]
        return sorted(longer, key=_by_score)


def _by_score(beam: Beam) -> float:
    return -beam.score
