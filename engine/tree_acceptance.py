"""Which tokens of a tree of drafts the target keeps: acceptance with several tokens for one position.

Multi-step speculative sampling (Miao et al. 2024, "SpecInfer"), with tokens drawn without replacement (Chen et al.
2024, "Sequoia"): for one position x₁, x₂, … are drawn from q, each without those
before it. x₁ is judged as in Leviathan et al. 2023, with min(1, p(x₁) / q(x₁)). If it is refused the next is judged in
the same way, with p replaced by norm(max(0, p − q)) and q by what it was drawn from, norm(q without x₁). If all are
refused, the token is drawn from what p has become. Every step keeps the distribution as Appendix A.1 shows for one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.forest import Forest
from engine.sampling import draw
from engine.tree import BRANCHES


@dataclass(frozen=True, slots=True)
class Support:
    """The part of the vocabulary that a drafter draws from."""

    tokens: Tensor
    """[V'], int64."""
    places: Tensor
    """[V], int64: where each token is in `tokens`; anything for those that are not."""

    @classmethod
    def of(cls, tokens: Tensor, vocabulary: int) -> Support:
        """That of a vocabulary map [V']."""
        places = torch.zeros(vocabulary, dtype=torch.long, device=tokens.device)
        places[tokens] = torch.arange(len(tokens), device=tokens.device)
        return cls(tokens, places)


@dataclass(frozen=True, slots=True)
class TreeVerdict:
    """The outcome of one verification, per row, on the device. D positions, K tokens at most for each."""

    end: Tensor
    """[B], int64: the last token kept, as its tree counts them; 0 if none was."""
    path: Tensor
    """[B, D], int64: the tokens kept, one for each position; 0 behind them."""
    last: Tensor
    """[B], int64: the correction or bonus."""
    left: Tensor | None
    """[B, V], float32: what the last token was drawn from, up to a factor; None where every row is greedy."""
    p: Tensor
    """[B, D, K], float32: p(x) of each token offered behind what was kept, p as it was when it was its turn."""
    q: Tensor
    """[B, D, K], float32: q(x), likewise."""
    beta: Tensor
    """[B, D], float32: the probability that one of these tokens is kept, given that they were offered."""


def accept_tree(
    p_at: Callable[[Tensor], Tensor],
    drafted: Tensor,
    forest: Forest,
    greedy: Tensor,
    u: Tensor,
    u_last: Tensor,
    q: Tensor,
    support: Support,
) -> TreeVerdict:
    """Judge the trees of a batch, position by position.

    Args:
        p_at: for the tokens [B] of each row's pass, the target's distributions [B, V], float32, of what follows them.
        drafted: [B, N], int64.
        forest: of the batch.
        greedy: [B], bool: rows whose p is one-hot and whose tokens were chosen, not drawn: kept if p is theirs.
        u: uniform draws [B, D, `BRANCHES`], float64, one for each token offered for a position.
        u_last: uniform draws [B], float64, for each row's last token.
        q: [B, I, V'], float32: what was drawn from behind each of the first I tokens of the pass; 0 for greedy rows.
        support: which tokens the V' are.
    """
    rows = torch.arange(len(drafted), device=drafted.device)
    end, going = torch.zeros_like(rows), torch.ones_like(greedy)
    whole = p_at(end)
    judged: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    for depth, width in enumerate(forest.widths):
        children = forest.children[rows, end, :width]
        tokens = support.places[drafted.gather(1, (children - 1).clamp(min=0))]
        position = _Position(whole, q[rows, end.clamp(max=q.shape[1] - 1)], greedy, support)
        chosen = torch.zeros_like(end)
        for rank in range(width):
            offered = going & (children[:, rank] > 0)
            kept = position.judge(tokens[:, rank], u[:, depth, rank], offered)
            chosen = torch.where(kept & (chosen == 0), children[:, rank], chosen)
        going = chosen > 0
        judged.append((position.p, position.q, 1 - position.missed, chosen))
        end = torch.where(going, chosen, end)
        whole = torch.where(going[:, None], p_at(end), position.left())
        if whole.device.type == "cpu" and not going.any():  # to ask another device would mean to wait for it
            break
    missing = len(forest.widths) - len(judged)
    p, q, beta, path = (
        torch.nn.functional.pad(torch.stack(column, 1), (0, 0) * (column[0].dim() - 1) + (0, missing))
        for column in zip(*judged, strict=True)
    )
    return TreeVerdict(end, path, draw(whole, u_last), whole, p, q, beta)


def accept_tree_greedy(best: Tensor, drafted: Tensor, forest: Forest) -> TreeVerdict:
    """`accept_tree` where every p is one-hot, at `best` [B, N + 1]: go on along the token that is the target's."""
    rows = torch.arange(len(drafted), device=drafted.device)
    end, going = torch.zeros_like(rows), torch.ones_like(rows, dtype=torch.bool)
    judged: list[tuple[Tensor, Tensor]] = []
    for _ in forest.widths:
        children = forest.children[rows, end]
        agrees = drafted.gather(1, (children - 1).clamp(min=0)) == best.gather(1, end[:, None])
        agrees &= (children > 0) & going[:, None]
        chosen = (children * agrees).amax(-1)
        going = chosen > 0
        end = torch.where(going, chosen, end)
        judged.append((agrees.float(), chosen))
    p, path = (torch.stack(column, 1) for column in zip(*judged, strict=True))
    last = best.gather(1, end[:, None]).squeeze(1)
    return TreeVerdict(end, path, last, None, p, torch.ones_like(p), p.amax(-1))


class _Position:
    """What is left of p and q of one position while the tokens offered for it are judged one after the other.

    Args:
        p: [B, V].
        q: [B, V'].
        greedy: [B].
        support: which tokens the V' are; q is 0 outside of it, so there p only grows in proportion.
    """

    def __init__(self, p: Tensor, q: Tensor, greedy: Tensor, support: Support) -> None:
        self._whole = p
        self._support = support
        self._greedy = greedy
        self._p, self._q = p[:, support.tokens], q
        self._outside = (p.sum(-1) - self._p.sum(-1)).clamp_(min=0)
        self._grown = torch.ones_like(self._outside)
        self._rank = 0
        self.p = p.new_zeros(len(p), BRANCHES)
        self.q = p.new_zeros(len(p), BRANCHES)
        self.missed = torch.ones_like(self._outside)
        """The probability that none so far is kept."""

    def judge(self, place: Tensor, u: Tensor, offered: Tensor) -> Tensor:
        """Which rows [B] keep the token at this place of the support; for the next one it counts as refused."""
        column = place[:, None]
        p_x, q_x = self._p.gather(1, column).squeeze(1), self._q.gather(1, column).squeeze(1)
        # Where q had fewer tokens than were to be offered, the rest are none: nothing was drawn.
        offered = offered & (self._greedy | (q_x > 0))
        kept = offered & (u * q_x.double() < p_x.double())
        chance = torch.where(self._greedy, (p_x > 0).float(), (p_x / q_x).clamp(max=1))
        self.p[:, self._rank] = p_x
        self.q[:, self._rank] = torch.where(self._greedy, 1.0, q_x)
        self._rank += 1
        self.missed = torch.where(offered, self.missed * (1 - chance), self.missed)
        self._refuse(column, offered)
        return kept

    def left(self) -> Tensor:
        """p [B, V] behind the refusals."""
        left = self._whole * self._grown[:, None]
        left[:, self._support.tokens] = self._p
        return left

    def _refuse(self, column: Tensor, offered: Tensor) -> None:
        rest = (self._p - self._q).clamp_(min=0)
        mass = rest.sum(-1) + self._outside
        # Where rounding leaves nothing over, p stays as it is.
        real = offered & (mass > 0)
        factor = torch.where(real, 1 / mass, 1.0)
        self._p = torch.where(real[:, None], rest * factor[:, None], self._p)
        self._outside, self._grown = self._outside * factor, self._grown * factor
        others = self._q.scatter(1, column, 0.0)
        total = others.sum(-1, keepdim=True)
        self._q = torch.where(offered[:, None] & (total > 0), others / total, self._q.where(~offered[:, None], others))
