"""Beam search over a target's log-probabilities, step by step: which texts go on, and which are complete.

The rules are those of `generate(num_beams=N)` in transformers with its defaults, a length penalty of 1 and
`early_stopping=False`. A step looks at the (1 + ends) x N likeliest texts that are one token longer, two N at least. Of
the first N of them, those that end are complete, and the N best complete ones are kept; the first N that do not end go
on. A complete text is scored by its log-probability over its length in tokens, the end included. The search is over
when N texts are complete and the best one that goes on, at the length it has now, scores no higher than the worst of
them; or at the limit of tokens, where the first N are complete as they are.

Where texts are equally likely, the one with the better beginning comes first, and then the lower token id.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specchat.engine.errors import EngineError
from specchat.engine.events import FinishReason
from specchat.engine.tools.beams.node import Node


@dataclass(frozen=True, slots=True)
class Beam:
    """A text that goes on."""

    node: Node
    """Its last token."""
    score: float
    """Its log-probability behind the prompt."""


@dataclass(frozen=True, slots=True)
class Complete:
    """A text that is complete."""

    node: Node
    """Its last token."""
    log_probability: float
    score: float
    """Log-probability per token."""
    reason: FinishReason


class BeamSearch:
    """One search.

    Args:
        prompt: the last token of the prompt.
        width: N.
        ends: tokens that end a text.
        limit: most tokens of a text.
        at_limit: why texts of so many tokens end.
    """

    def __init__(self, prompt: Node, width: int, ends: Collection[int], limit: int, at_limit: FinishReason) -> None:
        self.beams = [Beam(prompt, 0.0)]
        """Texts that go on, best first."""
        self.complete: list[Complete] = []
        """Up to N, best first."""
        self.steps = 0
        self._width = width
        self._ends = ends
        self._limit = limit
        self._at_limit = at_limit

    @property
    def done(self) -> bool:
        """Whether no text that goes on is looked at any more."""
        if not self.beams:
            return True
        return len(self.complete) == self._width and self.beams[0].score / self.steps <= self.complete[-1].score

    @property
    def left(self) -> int:
        """Steps that there may still be."""
        return self._limit - self.steps

    def advance(self, log_probs: Tensor) -> None:
        """One step.

        Args:
            log_probs: [beams, V], of the token behind each of `beams`.

        Raises:
            EngineError: one is not a number.
        """
        self.steps += 1
        found = _likeliest(self.beams, log_probs, max(2, 1 + len(self._ends)) * self._width)
        going_on: list[Beam] = []
        for rank, (score, beam, token) in enumerate(found):
            ends, last = token in self._ends, self.steps == self._limit
            if not ends and not last:
                if len(going_on) < self._width:
                    going_on.append(Beam(beam.node.followed_by(token), score))
            elif rank < self._width:
                reason = FinishReason.EOS if ends else self._at_limit
                self.complete.append(Complete(beam.node.followed_by(token), score, score / self.steps, reason))
        self.complete = sorted(self.complete, key=lambda each: -each.score)[: self._width]  # a stable order
        self.beams = going_on


def _likeliest(beams: Sequence[Beam], log_probs: Tensor, count: int) -> list[tuple[float, Beam, int]]:
    """The `count` likeliest texts that are one token longer than a beam: log-probability, beam and token, in order."""
    scores = torch.tensor([beam.score for beam in beams], dtype=torch.float64, device=log_probs.device)
    summed = (scores[:, None] + log_probs).flatten()
    if summed.isnan().any():
        raise EngineError("the target computed something that is not a number: try another --dtype")
    least = summed.topk(min(count, len(summed))).values[-1]
    places = (summed >= least).nonzero()[:, 0]  # more than `count` where some are as likely as the last
    values, order = summed[places].sort(descending=True, stable=True)
    vocabulary = log_probs.shape[1]
    return [
        (value, beams[place // vocabulary], place % vocabulary)
        for value, place in zip(values[:count].tolist(), places[order][:count].tolist(), strict=True)
    ]
