"""Greedy check: replies with speculation against those without, and against the target's own logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specchat.engine.tools.compare.figures import first_difference
from specchat.engine.tools.lossless.reference import Scorer

EXACT = 1e-6
"""ε of quantised passes: a token's bits depend on nothing but the tokens it sees."""
BY_CODES = 0.1
"""ε in logits of quantised layers in modelling code of transformers, whose last bits can turn an activation's code."""
TOLERANCES = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}
"""ε in logits per dtype: how much rounding may change the difference of two logits.

A pass over several tokens sums in another order than a pass over one. In bfloat16 a logit of 16 to 32 is a multiple of
1/8, so two close tokens may tie or swap.
"""


@dataclass(frozen=True, slots=True)
class Divergence:
    """First difference of a reply from the one without speculation."""

    prompt: str
    """Prompt set and number, such as chat 3."""
    position: int
    """Tokens of the reply before the difference."""
    plain: int | None
    """Token without speculation; None if that reply had ended."""
    speculative: int | None
    top2_gap: float
    """Difference of the target's two largest logits there."""


@dataclass(frozen=True, slots=True)
class GreedyCheck:
    """Result of one drafter over all prompts."""

    drafter: str
    prompts: int
    tokens: int
    """Tokens emitted with this drafter, all checked."""
    divergences: tuple[Divergence, ...]
    worst_deficit: float
    """Largest deficit of an emitted token's logit to the target's largest."""
    tolerance: float
    """ε, in logits."""

    @property
    def passed(self) -> bool:
        """Whether all differences are within the tolerance."""
        gaps = [divergence.top2_gap for divergence in self.divergences]
        return max([self.worst_deficit, *gaps]) < self.tolerance


def check_greedy(
    drafter: str,
    prompts: Sequence[tuple[str, Sequence[int]]],
    plain: Sequence[Sequence[int]],
    speculative: Sequence[Sequence[int]],
    reference: Scorer,
    tolerance: float,
) -> GreedyCheck:
    """Compare the replies of a drafter with those of plain decoding, and each token with the target's own choice.

    Args:
        prompts: label and token ids of each.
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
