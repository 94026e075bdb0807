"""Acceptance of drafted tokens: the reference, vectorised over the batch, for chains and trees.

Speculative sampling (Leviathan et al. 2023, section 2.3 and Algorithm 1): a drafted token x ~ q is accepted with
probability min(1, p(x) / q(x)); after a rejection a token is drawn from norm(max(0, p - q)), and after full acceptance
from p. The output is distributed as p, whatever q is (Appendix A.1).

Several candidates x₁, x₂, … for one position are tested in turn (multi-step speculative sampling, Miao et al. 2024,
"SpecInfer"): after each rejection p is replaced by norm(max(0, p - qᵢ)), where qᵢ is the distribution that xᵢ was drawn
from. Candidates of one source were drawn without replacement (Chen et al. 2024, "Sequoia"): qᵢ is that source without
the candidates before it. Each step preserves the distribution by Appendix A.1.

A certain token, which was not drawn from any q, is accepted if it is the target's own token of the position: the one
that the position's uniform draws from p. That has the probability p(x), which is Algorithm 1 for a one-hot q, and the
reply is the same whatever is drafted.

Lenience l < 1 (Appendix A.5) accepts x with probability min(1, p(x) / (l q(x))). A rejection still draws from
norm(max(0, p - q)), so no token is emitted with probability above p(x) / l:
- where q(x) ≥ p(x) the residual is 0, and acceptance gives min(q(x), p(x) / l);
- where q(x) < p(x), x is always accepted, and a rejection, of probability 1 - Σ min(q, p / l) ≤ Σ max(0, p - q), adds
  at most p(x) - q(x): together no more than p(x).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from specchat.engine.decoding.draft import Support
from specchat.engine.decoding.tree import BRANCHES
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.sampling.sampler import SamplingRows, draw, most_likely, standardise


@dataclass(frozen=True, slots=True)
class Verdict:
    """Accepted tokens of a batch of drafts of up to γ positions, on the device."""

    end: Tensor
    """[B], int64: node of the last accepted token; 0 if none was accepted."""
    path: Tensor
    """[B, γ], int64: nodes of the accepted tokens, one per position, then 0."""
    last: Tensor
    """[B], int64: correction, bonus or plain token."""
    residual: Tensor | None
    """[B, V], float32: distribution of the last token, up to a factor; None if all rows are greedy."""
    p: Tensor
    """[B, γ, `BRANCHES`], float32: p(x) of each tested candidate, from the residual at its turn."""
    q: Tensor
    """[B, γ, `BRANCHES`], float32: q(x) of each tested candidate."""
    beta: Tensor
    """[B, γ], float32: probability that a candidate of the position is accepted. For chains Σ min(p / l, q), before
    the token is drawn; for trees given the candidates."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """Drafted tokens of a batch on the device."""

    tokens: Tensor
    """[B, K], int64; values beyond a row's length are ignored."""
    tree_mask: TreeMask
    q: Tensor | None = None
    """[B, I, V'], float32, NaN where a drafter failed numerically; None if all tokens are certain."""
    support: Support | None = None
    """The V' tokens of q; None if it is over the whole vocabulary."""
    drawn: Tensor | None = None
    """[B], bool: rows whose tokens were drawn from q; None if there is no q. Greedy rows count as certain."""
    chains: Tensor | None = None
    """[B], bool: rows whose β is Σ min(p / l, q); None for no row."""


def accept(logits: Tensor, drafted: Drafted, settings: SamplingRows, u: Tensor, u_own: Tensor) -> Verdict:
    """Accept or reject drafted tokens, position by position.

    Args:
        logits: [B, T, V] of the target after each node, bias and penalties applied.
        drafted: K ≤ T - 1 tokens per row.
        settings: of B rows; XTC by node.
        u: uniform draws [B, γ, `BRANCHES`], float64 in [0, 1), one per candidate.
        u_own: uniform draws [B, γ + 1], float64, of the positions' tokens: of certain ones, and of each row's last.
    """
    if settings.flags.all_greedy:
        return _accept_greedy(logits, drafted, settings)
    index = torch.arange(len(logits), device=logits.device)
    near = near_best(logits, drafted.tokens, settings)
    one_hot = torch.ones_like(settings.greedy) if drafted.drawn is None else settings.greedy | ~drafted.drawn
    certain = one_hot if settings.lenience is None else one_hot & (settings.lenience >= 1)
    end, active = torch.zeros_like(index), torch.ones_like(index, dtype=torch.bool)
    p = _target(logits, end, settings)
    accepted, own = torch.zeros_like(end), draw(p, u_own[:, 0])
    columns: list[tuple[Tensor, ...]] = []
    for depth, width in enumerate(drafted.tree_mask.widths):
        nodes = drafted.tree_mask.candidates[index, end, :width]
        position = _Position(p, drafted, drafted.tree_mask.sources[index, end, :width], settings.lenience, one_hot)
        chosen = torch.zeros_like(end)
        for rank in range(width):
            place = (nodes[:, rank : rank + 1] - 1).clamp(min=0)
            token = drafted.tokens.gather(1, place)
            forced = None if near is None else near.gather(1, place).squeeze(1)
            kept = position.test(token, u[:, depth, rank], active & (nodes[:, rank] > 0), certain, own, forced)
            chosen = torch.where(kept & (chosen == 0), nodes[:, rank], chosen)
        active = chosen > 0
        columns.append((position.p_x, position.q_x, position.beta, chosen))
        end, accepted = torch.where(active, chosen, end), accepted + active
        p = torch.where(active[:, None], _target(logits, end, settings), position.p)
        own = torch.where(certain & ~active, own, draw(p, u_own.gather(1, accepted[:, None])[:, 0]))
        if p.device.type == "cpu" and not active.any():  # on a GPU this would synchronise
            break
    p_x, q_x, beta, path = _stacked(columns, len(drafted.tree_mask.widths), p)
    return Verdict(end, path, own, p, p_x, q_x, beta)


def _accept_greedy(logits: Tensor, drafted: Drafted, settings: SamplingRows) -> Verdict:
    """`accept` for rows whose p is one-hot: follow the drafted tokens that equal the target's."""
    best, tokens = most_likely(logits), drafted.tokens
    near = near_best(logits, tokens, settings)
    index = torch.arange(len(best), device=best.device)
    end, active = torch.zeros_like(index), torch.ones_like(index, dtype=torch.bool)
    columns: list[tuple[Tensor, ...]] = []
    for _ in drafted.tree_mask.widths:
        nodes = drafted.tree_mask.candidates[index, end]
        place = (nodes - 1).clamp(min=0)
        agrees = (tokens.gather(1, place) == best.gather(1, end[:, None])) & (nodes > 0) & active[:, None]
        kept = agrees if near is None else agrees | (near.gather(1, place) & (nodes > 0) & active[:, None])
        chosen = (nodes * kept).amax(-1)
        active = chosen > 0
        end = torch.where(active, chosen, end)
        columns.append((agrees.float(), torch.ones_like(agrees, dtype=torch.float32), kept.amax(-1).float(), chosen))
    p_x, q_x, beta, path = _stacked(columns, len(columns), logits)
    return Verdict(end, path, best.gather(1, end[:, None]).squeeze(1), None, p_x, q_x, beta)


def near_best(logits: Tensor, tokens: Tensor, settings: SamplingRows) -> Tensor | None:
    """Drafted tokens of chains that a lenient greedy row accepts although another token is most likely.

    The argmax form of lenience (Leviathan et al. 2023, Appendix A.5): x is accepted where p(x) ≥ l max(p), p at
    temperature 1 and before any filter, which is logit(x) - max(logits) ≥ log(l). The paper prints "p(x) ≤ l max(p)";
    as that would accept only unlikely tokens and reject the best one, the sign is a misprint.

    Args:
        logits: [B, T, V], any float dtype, T > K; with bias and penalties, as for picking the greedy token.
        tokens: [B, K], int64.
        settings: of B rows.

    Returns:
        [B, K], bool; False for rows that are not greedy or not lenient. None if no row is greedy, or none lenient.
    """
    if settings.lenience is None or not settings.flags.any_greedy:
        return None
    judged = logits[:, : tokens.shape[1]]
    chosen = judged.gather(-1, tokens[..., None]).squeeze(-1).double()
    ratio = (chosen - judged.amax(-1).double()).exp()
    return (ratio >= settings.lenience[:, None]) & (settings.greedy & (settings.lenience < 1))[:, None]


class _Position:
    """Residual of one position while its candidates are tested one after the other.

    Args:
        p: [B, V], float32, the target's distributions.
        drafted: the batch.
        sources: [B, n], int64: index into q of each candidate.
        lenience: [B], float64; None if all are 1.
        one_hot: [B], bool: rows whose tokens were not drawn.
    """

    def __init__(self, p: Tensor, drafted: Drafted, sources: Tensor, lenience: Tensor | None, one_hot: Tensor) -> None:
        self.p = p
        """[B, V]: residual after the rejections so far."""
        self._drafted, self._sources = drafted, sources
        self._lenience, self._one_hot = lenience, one_hot
        self._rank = 0
        self._q: Tensor | None = None
        self._token: Tensor | None = None
        self.p_x, self.q_x = p.new_zeros(len(p), BRANCHES), p.new_zeros(len(p), BRANCHES)
        self._missed = p.new_ones(len(p))
        self._overlap = torch.zeros_like(self._missed)

    @property
    def beta(self) -> Tensor:
        """[B]: probability that a candidate is accepted (`Verdict.beta`)."""
        given = 1 - self._missed
        return given if self._drafted.chains is None else torch.where(self._drafted.chains, self._overlap, given)

    def test(
        self, token: Tensor, u: Tensor, offered: Tensor, certain: Tensor, own: Tensor, forced: Tensor | None
    ) -> Tensor:
        """Test the next candidate; the residual becomes that after its rejection.

        Args:
            token: [B, 1], int64.
            u: [B], float64.
            offered: [B], bool: rows that have this candidate.
            certain: [B], bool: rows that accept it if it is their own token.
            own: [B], int64, the target's own tokens.
            forced: [B], bool: rows that accept it regardless of p.

        Returns:
            [B], bool: rows that accept it.
        """
        q = self._source(token)
        p_x = self.p.gather(1, token).squeeze(1)
        q_x = torch.ones_like(p_x) if q is None else q.gather(1, token).squeeze(1)
        offered = offered & (q_x > 0)  # a token of no weight was drawn from NaN, or fills a place: p decides alone
        scale = 1.0 if self._lenience is None else self._lenience
        kept = offered & torch.where(certain, token.squeeze(1) == own, u * scale * q_x.double() < p_x.double())
        chance = (p_x / (q_x * scale)).clamp(max=1).float().nan_to_num(nan=0.0)
        overlap = chance
        if q is not None:
            lenient = self.p if self._lenience is None else self.p / self._lenience.float()[:, None]
            overlap = torch.where(q_x > 0, torch.minimum(lenient, q).sum(-1), 0.0)
        if forced is not None:
            kept = kept | (offered & forced)
            chance, overlap = chance.masked_fill(forced, 1.0), overlap.masked_fill(forced, 1.0)
        self.p_x[:, self._rank], self.q_x[:, self._rank] = p_x, q_x
        if self._rank == 0:
            self._overlap = overlap
        self._rank += 1
        self._missed = torch.where(offered, self._missed * (1 - chance), self._missed)
        rest = self.p.scatter(1, token, 0.0) if q is None else (self.p - q).clamp_(min=0)
        mass = rest.sum(-1, keepdim=True)
        # Where rounding leaves a residual of 0, p stays unchanged.
        self.p = torch.where(offered[:, None] & (mass > 0), rest / mass, self.p)
        return kept

    def _source(self, token: Tensor) -> Tensor | None:
        """q [B, V] of the candidate under test; None if all rows are certain."""
        table, rank = self._drafted.q, self._rank
        if table is None:
            return None
        source = self._sources[:, rank]
        index = torch.arange(len(source), device=source.device)
        q = table[index, source.clamp(max=table.shape[1] - 1)].nan_to_num(nan=0.0)
        if self._drafted.support is not None:
            q = self._drafted.support.spread(q)
        if self._q is not None and self._token is not None:
            others = self._q.scatter(1, self._token, 0.0)
            total = others.sum(-1, keepdim=True)
            others = torch.where(total > 0, others / total, others)
            q = torch.where((source == self._sources[:, rank - 1])[:, None], others, q)
        self._q, self._token = q, token
        return torch.where(self._one_hot[:, None], torch.zeros_like(q).scatter_(1, token, 1.0), q)


def _target(logits: Tensor, nodes: Tensor, settings: SamplingRows) -> Tensor:
    """The target's distributions [B, V] after one node per row."""
    index = torch.arange(len(logits), device=logits.device)
    return standardise(logits[index, nodes][:, None], settings.at(nodes[:, None]))[:, 0]


def _stacked(columns: list[tuple[Tensor, ...]], depth: int, like: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """p(x), q(x), β and chosen nodes of all positions, zero-padded to the full depth."""
    if not columns:
        none = like.new_zeros(len(like), 0, dtype=torch.float32)
        chances = none[..., None].expand(-1, -1, BRANCHES)
        return chances, chances, none, none.long()
    p_x, q_x, beta, path = (
        pad(torch.stack(column, 1), (0, 0) * (column[0].dim() - 1) + (0, depth - len(columns)))
        for column in zip(*columns, strict=True)
    )
    return p_x, q_x, beta, path
