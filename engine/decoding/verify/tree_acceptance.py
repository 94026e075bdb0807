"""Acceptance of tree drafts, with several tokens for one position: pure functions of p, q and uniform draws.

Multi-step speculative sampling (Miao et al. 2024, "SpecInfer"), with tokens drawn without replacement (Chen et al.
2024, "Sequoia"). For one position x₁, x₂, … are drawn from q, each without those before it. x₁ is accepted with
probability min(1, p(x₁) / q(x₁)), as in Leviathan et al. 2023. If it is rejected the next is tested in the same way,
with p replaced by norm(max(0, p − q)) and q by what x₂ was drawn from, norm(q without x₁). If all are rejected, a token
is drawn from the last residual. Every step preserves the distribution, by Appendix A.1. So it does where each token was
drawn from a distribution of its own, with replacement: p is replaced in the same way, and the next q is that of x₂.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specchat.engine.decoding.proposal import Support
from specchat.engine.decoding.tree import BRANCHES
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.sampling.sampler import draw


@dataclass(frozen=True, slots=True)
class TreeVerdict:
    """Result of verifying trees of depth γ, per row, on the device."""

    end: Tensor
    """[B], int64: node of the last accepted token; 0 if none was."""
    path: Tensor
    """[B, γ], int64: nodes of the accepted tokens, one per position; 0 behind them."""
    last: Tensor
    """[B], int64: correction or bonus token."""
    left: Tensor | None
    """[B, V], float32: distribution of the last token, up to a factor; None if all rows are greedy."""
    p: Tensor
    """[B, γ, `BRANCHES`], float32: p(x) of each tested token, p being the residual at its turn."""
    q: Tensor
    """[B, γ, `BRANCHES`], float32: q(x), q being what was left at its turn."""
    beta: Tensor
    """[B, γ], float32: probability that one of the tokens offered for a position is accepted."""


def accept_tree(
    p_at: Callable[[Tensor], Tensor],
    drafted: Tensor,
    tree_mask: TreeMask,
    greedy: Tensor,
    u: Tensor,
    u_last: Tensor,
    q: Tensor | None,
    support: Support | None,
    sources: Tensor | None = None,
) -> TreeVerdict:
    """Accept or reject the drafted tokens of a batch of trees, position by position.

    Args:
        p_at: maps one node per row, [B], to the target's distributions [B, V], float32, of what follows it.
        drafted: [B, K], int64.
        tree_mask: of the batch.
        greedy: [B], bool: rows whose p and q are one-hot.
        u: uniform draws [B, γ, `BRANCHES`], float64, one per token offered for a position.
        u_last: uniform draws [B], float64, for each row's last token.
        q: [B, I, V'], float32: draft distribution behind each of the first I nodes, or the I that `sources` are of; 0
            for greedy rows; None where no token was drawn.
        support: the V' tokens; None where no token was drawn, or where there are `sources`.
        sources: [B, K+1, n], int64: by node and trial, which of the I its token was drawn from; the mask's children are
            those of the trials then, and no row is greedy. None where what follows a node is drawn without replacement.
    """
    rows = torch.arange(len(drafted), device=drafted.device)
    end, going = torch.zeros_like(rows), torch.ones_like(greedy)
    whole = p_at(end)
    judged: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    for depth, width in enumerate(tree_mask.widths):
        children = tree_mask.children[rows, end, :width]
        tokens = drafted.gather(1, (children - 1).clamp(min=0))
        position: _Position | _CertainPosition | _MergedPosition
        if q is not None and sources is not None:
            position = _MergedPosition(whole, q, sources[rows, end])
        elif q is None or support is None:
            position = _CertainPosition(whole)
        else:
            tokens = support.places[tokens]
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
        if whole.device.type == "cpu" and not going.any():  # asking a GPU would mean waiting for it
            break
    missing = len(tree_mask.widths) - len(judged)
    p, q, beta, path = (
        torch.nn.functional.pad(torch.stack(column, 1), (0, 0) * (column[0].dim() - 1) + (0, missing))
        for column in zip(*judged, strict=True)
    )
    return TreeVerdict(end, path, draw(whole, u_last), whole, p, q, beta)


def accept_tree_greedy(best: Tensor, drafted: Tensor, tree_mask: TreeMask) -> TreeVerdict:
    """`accept_tree` for one-hot p, at `best` [B, K+1]: follow the drafted tokens that equal the target's."""
    rows = torch.arange(len(drafted), device=drafted.device)
    end, going = torch.zeros_like(rows), torch.ones_like(rows, dtype=torch.bool)
    judged: list[tuple[Tensor, Tensor]] = []
    for _ in tree_mask.widths:
        children = tree_mask.children[rows, end]
        agrees = drafted.gather(1, (children - 1).clamp(min=0)) == best.gather(1, end[:, None])
        agrees &= (children > 0) & going[:, None]
        chosen = (children * agrees).amax(-1)
        going = chosen > 0
        end = torch.where(going, chosen, end)
        judged.append((agrees.float(), chosen))
    p, path = (torch.stack(column, 1) for column in zip(*judged, strict=True))
    last = best.gather(1, end[:, None]).squeeze(1)
    return TreeVerdict(end, path, last, None, p, torch.ones_like(p), p.amax(-1))


class _CertainPosition:
    """Residual p of one position while tokens that were not drawn are tested one after the other.

    The q of each is one-hot, q₁, q₂, … of iterative speculative sampling (Stratos, "Speculative Decoding", section 2):
    it is accepted with probability p(x), and what is left of p is p without x.

    Args:
        p: [B, V].
    """

    def __init__(self, p: Tensor) -> None:
        self._p = p
        self._rank = 0
        self.p = p.new_zeros(len(p), BRANCHES)
        self.q = p.new_zeros(len(p), BRANCHES)
        self.missed = p.new_ones(len(p))
        """[B]: probability that none so far is accepted."""

    def judge(self, token: Tensor, u: Tensor, offered: Tensor) -> Tensor:
        """Test a token [B]; returns which rows [B] accept it."""
        column = token[:, None]
        p_x = self._p.gather(1, column).squeeze(1)
        self.p[:, self._rank], self.q[:, self._rank] = p_x, 1.0
        self._rank += 1
        self.missed = torch.where(offered, self.missed * (1 - p_x), self.missed)
        rest = self._p.scatter(1, column, 0.0)
        mass = rest.sum(-1, keepdim=True)
        # Where rounding leaves a residual of 0, p stays unchanged.
        self._p = torch.where(offered[:, None] & (mass > 0), rest / mass, self._p)
        return offered & (u < p_x.double())

    def left(self) -> Tensor:
        """Residual p [B, V] after the rejections so far."""
        return self._p


class _MergedPosition:
    """Residual p of one position while tokens are tested that were each drawn from a distribution of its own.

    q₁, q₂, … of iterative speculative sampling, the draws independent of each other: a token that two drafts brought is
    tested twice. No row is greedy.

    Args:
        p: [B, V].
        q: [B, I, V].
        sources: [B, n], int64: by trial, which of the I its token was drawn from.
    """

    def __init__(self, p: Tensor, q: Tensor, sources: Tensor) -> None:
        self._p, self._q, self._sources = p, q, sources
        self._rows = torch.arange(len(p), device=p.device)
        self._rank = 0
        self.p = p.new_zeros(len(p), BRANCHES)
        self.q = p.new_zeros(len(p), BRANCHES)
        self.missed = p.new_ones(len(p))
        """[B]: probability that none so far is accepted."""

    def judge(self, token: Tensor, u: Tensor, offered: Tensor) -> Tensor:
        """Test a token [B]; returns which rows [B] accept it."""
        q, column = self._q[self._rows, self._sources[:, self._rank]].nan_to_num_(nan=0.0), token[:, None]
        p_x, q_x = self._p.gather(1, column).squeeze(1), q.gather(1, column).squeeze(1)
        offered = offered & (q_x > 0)  # else it was drawn from what is not a number
        self.p[:, self._rank], self.q[:, self._rank] = p_x, q_x
        self._rank += 1
        self.missed = torch.where(offered, self.missed * (1 - (p_x / q_x).clamp(max=1)), self.missed)
        rest = (self._p - q).clamp_(min=0)
        mass = rest.sum(-1, keepdim=True)
        # Where rounding leaves a residual of 0, p stays unchanged.
        self._p = torch.where(offered[:, None] & (mass > 0), rest / mass, self._p)
        return offered & (u * q_x.double() < p_x.double())

    def left(self) -> Tensor:
        """Residual p [B, V] after the rejections so far."""
        return self._p


class _Position:
    """Residual p and remaining q of one position while the tokens offered for it are tested one after the other.

    Args:
        p: [B, V].
        q: [B, V'].
        greedy: [B].
        support: the V' tokens; q is 0 outside of it, so there the residual is p times a factor.
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
        """[B]: probability that none so far is accepted."""

    def judge(self, place: Tensor, u: Tensor, offered: Tensor) -> Tensor:
        """Test the token at index `place` [B] of the support; returns which rows [B] accept it.

        p and q are updated as after a rejection, for the next token.
        """
        column = place[:, None]
        p_x, q_x = self._p.gather(1, column).squeeze(1), self._q.gather(1, column).squeeze(1).nan_to_num_(nan=0.0)
        # If q had fewer tokens than the tree has places, or is not a number, the remaining places hold no token.
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
        """Residual p [B, V] after the rejections so far."""
        left = self._whole * self._grown[:, None]
        left[:, self._support.tokens] = self._p
        return left

    def _refuse(self, column: Tensor, offered: Tensor) -> None:
        rest = (self._p - self._q).clamp_(min=0)
        mass = rest.sum(-1) + self._outside
        # Where rounding leaves a residual of 0, p stays unchanged.
        real = offered & (mass > 0)
        factor = torch.where(real, 1 / mass, 1.0)
        self._p = torch.where(real[:, None], rest * factor[:, None], self._p)
        self._outside, self._grown = self._outside * factor, self._grown * factor
        others = self._q.scatter(1, column, 0.0)
        total = others.sum(-1, keepdim=True)
        self._q = torch.where(offered[:, None] & (total > 0), others / total, self._q.where(~offered[:, None], others))
