"""Draft steps of a head: tokens and distributions of a tree or a chain, all on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from specchat.engine.decoding.tree import Tree
from specchat.engine.device.to_device import to_device
from specchat.engine.drafters.growing.scores import Scores
from specchat.engine.sampling.penalties import Adjustment
from specchat.engine.sampling.sampler import draw, draw_different, most_likely, standardise
from specchat.engine.sampling.sampling_rows import SamplingRows

Extend = Callable[[int, Tensor], Scores]
"""`HeadLayer.extend` at a depth, after drafted tokens [B, P]."""


class DraftSteps:
    """What a head does from the scores after each row's last token on.

    Args:
        vocabulary: [V'], int64, the tokens that the head can draft.
        size: V, of the target's vocabulary.
    """

    def __init__(self, vocabulary: Tensor, size: int) -> None:
        self.vocabulary = vocabulary
        self._size = size

    def tree(
        self, tree: Tree, levels: Sequence[Level], scores: Scores, extend: Extend, settings: SamplingRows, u: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """The same tree for rows that are all greedy, or all not: a draft step for each of its levels.

        Args:
            tree: of K tokens.
            levels: `levels_of` the tree.
            scores: [B, 1, V'], after each row's last token.
            extend: continues from there.
            settings: of B rows.
            u: [B, K], float64 uniforms.

        Returns:
            Tokens [B, K] and, unless rows are greedy, the distributions [B, inner, V'] that they were drawn from.
        """
        count, device = len(scores.logits), scores.logits.device
        tokens = torch.zeros(count, len(tree), dtype=torch.long, device=device)
        q = None
        if not settings.flags.all_greedy:
            q = torch.zeros(count, tree.inner, len(self.vocabulary), device=device)
        for depth, level in enumerate(levels):
            if depth:
                scores = extend(depth, tokens[:, level.tokens - 1])
            if q is None:
                places = scores.likeliest(level.draws.shape[1])
            else:
                q[:, level.tokens] = drawn_from = standardise(scores.logits, settings)
                places = draw_different(drawn_from, u[:, level.draws])
            tokens[:, level.children - 1] = self.vocabulary[places.flatten(1)[:, level.offered]]
        return tokens, q

    def chain(
        self,
        steps: int,
        scores: Scores,
        extend: Extend,
        settings: SamplingRows,
        u: Tensor,
        adjustment: Adjustment | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """One token for each position, `steps` for all rows.

        Args:
            steps: γ.
            scores: [B, 1, V'], after each row's last token.
            extend: continues from there.
            settings: of B rows.
            u: [B, γ], float64 uniforms.
            adjustment: bias and penalties.

        Returns:
            Tokens [B, γ] and, unless all rows are greedy, the distributions [B, γ, V] that they were drawn from.
        """
        tokens = torch.empty(len(scores.logits), 0, dtype=torch.long, device=scores.logits.device)
        distributions: list[Tensor] = []
        for step in range(steps):
            if step:
                scores = extend(step, tokens[:, -1:])
            token, q = self._choose(scores.logits, tokens, step, settings, adjustment, u)
            if q is not None:
                distributions.append(q)
            tokens = torch.cat([tokens, token[:, None]], dim=1)
        return tokens, torch.stack(distributions, 1) if distributions else None

    def _choose(
        self,
        logits: Tensor,
        drafted: Tensor,
        step: int,
        settings: SamplingRows,
        adjustment: Adjustment | None,
        u: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        """The next token of each row [B] from scores [B, 1, V'], and its distribution [B, V] unless all are greedy."""
        if adjustment is not None:
            logits = adjustment.apply(self._spread(logits, -torch.inf), drafted, first=step)
            if settings.flags.all_greedy:
                return most_likely(logits)[:, 0], None
            q = standardise(logits, settings)[:, 0]
            return draw(q, u[:, step]), q
        if settings.flags.all_greedy:
            return self.vocabulary[most_likely(logits)[:, 0]], None
        q = standardise(logits, settings)
        return self.vocabulary[draw(q[:, 0], u[:, step])], self._spread(q, 0.0)[:, 0]

    def _spread(self, values: Tensor, elsewhere: float) -> Tensor:
        """[B, 1, V] with the values [B, 1, V'] in their places."""
        whole = torch.full((*values.shape[:-1], self._size), elsewhere, dtype=values.dtype, device=values.device)
        whole[..., self.vocabulary] = values
        return whole


@dataclass(frozen=True, slots=True)
class Level:
    """One draft step of a tree, as indices on the device."""

    tokens: Tensor
    """[P], tokens of the pass that something is offered after."""
    parents: tuple[int, ...]
    """[P], where each one's parent is among those of the level before; on the host."""
    sources: Tensor
    """[P], the same on the device."""
    children: Tensor
    """[C], what is offered after them, tokens of the pass."""
    offered: Tensor
    """[C], which draw each of these is, counted over all P in turn."""
    draws: Tensor
    """[P, K], the uniform of each draw; K is the most that one of them offers, some draws are for nothing."""


@lru_cache
def levels_of(tree: Tree, device: torch.device) -> list[Level]:
    """The draft steps that make a tree."""
    levels = []
    before: tuple[int, ...] = ()
    for level in tree.levels:
        offered = [tree.children[token] for token in level]
        most = max(map(len, offered))
        draws = [[child - 1 for child in each] + [0] * (most - len(each)) for each in offered]
        parents = tuple(before.index(tree.parents[token - 1]) if token else 0 for token in level)
        children = [child for each in offered for child in each]
        ranks = [place * most + rank for place, each in enumerate(offered) for rank in range(len(each))]
        tokens, *others = (to_device(index, device) for index in (level, parents, children, ranks, draws))
        levels.append(Level(tokens, parents, *others))
        before = level
    return levels
