"""Greedy output with and without speculation, token by token, and against the target's own scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.compare.figures import first_difference
from engine.verification.reference import Reference

TOLERANCES = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}
"""ε, in logits: by how much rounding may change the lead of one token over another.

A pass over several tokens adds up in another order than a pass over one. In bfloat16 a logit of 16 to 32 is a
multiple of 1/8, so two tokens that are close may tie or swap.
"""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a reply first differs from the one without speculation."""

    prompt: str
    """Set and number, as chat 3."""
    position: int
    """Tokens of the reply before it."""
    plain: int | None
    """The token without speculation; None where that reply had ended."""
    speculative: int | None
    top2_gap: float
    """By how many logits the target prefers its first choice there to its second."""


@dataclass(frozen=True, slots=True)
class GreedyCheck:
    """One drafter over all prompts."""

    drafter: str
    prompts: int
    tokens: int
    """Emitted with this drafter, each of them checked."""
    divergences: tuple[Divergence, ...]
    worst_deficit: float
    """The most by which an emitted token fell short of the target's first choice, in logits."""
    tolerance: float
    """ε, in logits."""

    @property
    def passed(self) -> bool:
        """Whether all that differs is within rounding."""
        gaps = [divergence.top2_gap for divergence in self.divergences]
        return max([self.worst_deficit, *gaps]) < self.tolerance


def check_greedy(
    drafter: str,
    prompts: Sequence[tuple[str, Sequence[int]]],
    plain: Sequence[Sequence[int]],
    speculative: Sequence[Sequence[int]],
    reference: Reference,
    tolerance: float,
) -> GreedyCheck:
    """Compare the replies of a drafter with those of plain decoding, and each token with the target's own choice.

    Args:
        prompts: label and tokens of each.
        plain: replies without speculation, in the same order.
        speculative: replies with the drafter.
        tolerance: ε, in logits.
    """
    divergences: list[Divergence] = []
    worst = 0.0
    for (label, prompt), ours, theirs in zip(prompts, plain, speculative, strict=True):
        scores = reference.scores(prompt, theirs)
        top2 = scores.topk(2).values
        chosen = scores.gather(1, scores.new_tensor(theirs).long()[:, None])[:, 0]
        worst = max(worst, (top2[:, 0] - chosen).max().item())
        at = first_difference(ours, theirs)
        if at is not None:
            gap = (top2[min(at, len(theirs) - 1), 0] - top2[min(at, len(theirs) - 1), 1]).item()
            divergences.append(Divergence(label, at, _at(ours, at), _at(theirs, at), gap))
    return GreedyCheck(
        drafter=drafter,
        prompts=len(prompts),
        tokens=sum(map(len, speculative)),
        divergences=tuple(divergences),
        worst_deficit=worst,
        tolerance=tolerance,
    )


def _at(tokens: Sequence[int], index: int) -> int | None:
    return tokens[index] if index < len(tokens) else None
