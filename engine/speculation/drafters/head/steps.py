"""Draft steps of a head: tokens and distributions of a tree or a chain, all on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from specchat.engine.runner.to_device import to_device
from specchat.engine.runner.tree import Tree
from specchat.engine.sampling.penalties import Adjustment
from specchat.engine.sampling.sampler import SamplingRows, draw, most_likely, standardise
from specchat.engine.speculation.drafters.head.kv_window import Embed
from specchat.engine.speculation.drafters.head.network import DraftHead

Extend = Callable[[int, Tensor, Tensor], Tensor]
"""`HeadMemory.extend` at a depth, from states [B, P, d] and embeddings [B, P, d]."""


class DraftSteps:
    """What a head does from the state of each row's last token on.

    Args:
        head: the network.
        vocabulary: [V'], int64, the tokens that the head can draft.
        scores: the layer that scores them.
        embed: embeddings of the target.
        size: V, of the target's vocabulary.
    """

    def __init__(self, head: DraftHead, vocabulary: Tensor, scores: nn.Module, embed: Embed, size: int) -> None:
        self._head = head
        self.vocabulary = vocabulary
        self.embed = embed
        self._scores = scores
        self._size = size

    def tree(
        self, tree: Tree, levels: Sequence[Level], state: Tensor, extend: Extend, settings: SamplingRows, u: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """The same tree for rows that are all greedy, or all not: a draft step for each of its levels.

        Args:
            tree: of K tokens.
            levels: `levels_of` the tree.
            state: [B, 1, d], where drafting begins.
            extend: goes on from there.
            settings: of B rows.
            u: [B, K], float64 uniforms.

        Returns:
            Tokens [B, K] and, unless rows are greedy, the distributions [B, inner, V'] that they were drawn from.
        """
        tokens = torch.zeros(len(state), len(tree), dtype=torch.long, device=state.device)
        q = None
        if not settings.flags.all_greedy:
            q = torch.zeros(len(state), tree.inner, len(self.vocabulary), device=state.device)
        for depth, level in enumerate(levels):
            if depth:
                embedded = self.embed(tokens[:, level.tokens - 1])
                state = extend(depth, self._head.again(state[:, level.parents]), embedded)
            logits = self._scores(state)
            if q is None:
                places = logits.topk(level.draws.shape[1], -1).indices
            else:
                q[:, level.tokens] = drawn_from = standardise(logits, settings)
                places = _draw_different(drawn_from, u[:, level.draws])
            tokens[:, level.children - 1] = self.vocabulary[places.flatten(1)[:, level.offered]]
        return tokens, q

    def chain(
        self,
        steps: int,
        state: Tensor,
        extend: Extend,
        settings: SamplingRows,
        u: Tensor,
        adjustment: Adjustment | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """One token for each position, `steps` for all rows.

        Args:
            steps: γ.
            state: [B, 1, d], where drafting begins.
            extend: goes on from there.
            settings: of B rows.
            u: [B, γ], float64 uniforms.
            adjustment: bias and penalties.

        Returns:
            Tokens [B, γ] and, unless all rows are greedy, the distributions [B, γ, V] that they were drawn from.
        """
        tokens = torch.empty(len(state), 0, dtype=torch.long, device=state.device)
        distributions: list[Tensor] = []
        for step in range(steps):
            if step:
                state = extend(step, self._head.again(state), self.embed(tokens[:, -1:]))
            token, q = self._choose(self._scores(state), tokens, step, settings, adjustment, u)
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
    """[P], tokens of the pass that something is offered behind."""
    parents: Tensor
    """[P], where each one's parent is among those of the level before."""
    children: Tensor
    """[C], what is offered behind them, tokens of the pass."""
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
        indices = (
            level,
            [before.index(tree.parents[token - 1]) if token else 0 for token in level],
            [child for each in offered for child in each],
            [place * most + rank for place, each in enumerate(offered) for rank in range(len(each))],
            draws,
        )
        levels.append(Level(*(to_device(index, device) for index in indices)))
        before = level
    return levels


def _draw_different(weights: Tensor, u: Tensor) -> Tensor:
    """From distributions [B, P, V'] with uniforms [B, P, K], each token without those before it: [B, P, K]."""
    shape, left = u.shape, weights.flatten(0, 1)
    drawn: list[Tensor] = []
    for draws in u.flatten(0, 1).unbind(1):
        if drawn:
            left = left.scatter(1, drawn[-1][:, None], 0.0)
        drawn.append(draw(left, draws))
    return torch.stack(drawn, 1).view(shape)
