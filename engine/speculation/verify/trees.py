"""Verification of rows whose drafts are trees."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specchat.engine.runner.to_device import to_device
from specchat.engine.runner.tree import BRANCHES
from specchat.engine.runner.tree_mask import TreeMask
from specchat.engine.sampling.rng import Stream, uniforms
from specchat.engine.sampling.sampler import SamplingRows, broken, most_likely, standardise
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.speculation.proposal import Proposal
from specchat.engine.speculation.verify import top_logprobs as detail
from specchat.engine.speculation.verify.outcome import Outcome, Verified, packed
from specchat.engine.speculation.verify.tree_acceptance import TreeVerdict, accept_tree, accept_tree_greedy

_Offer = tuple[int, float, float, float]
"""A drafted token with its p, q and u."""


class VerifiedTrees(Verified):
    """Verified trees of b rows of a batch, with the results still on the device.

    Args:
        mine: [b], indices of the rows in the batch.
        rows: [b], their sequences.
        logits: [b, K+1, V], the target's.
        proposal: their drafts; K tokens in the largest tree.
        gammas: [b], draft lengths asked for.
    """

    path: Tensor
    """[b, γ], int64, on the device: nodes of the accepted tokens, 0 behind them."""

    @torch.inference_mode()
    def __init__(
        self,
        mine: Sequence[int],
        rows: Sequence[SequenceState],
        logits: Tensor,
        proposal: Proposal,
        gammas: Sequence[int],
    ) -> None:
        trees = proposal.whole_trees
        assert trees is not None
        drafted, device = proposal.tokens, logits.device
        tree_mask = TreeMask.of(trees, drafted.shape[1] + 1, device)
        seeds, numbers = [row.seed for row in rows], [row.rounds for row in rows]
        depth = len(tree_mask.widths)
        self._u = uniforms(seeds, numbers, Stream.ACCEPT, depth * BRANCHES).reshape(-1, depth, BRANCHES)
        self._trees, self._gammas = trees, gammas
        settings = SamplingRows.of([row.request.sampling for row in rows], device)
        index = torch.arange(len(rows), device=device)
        if settings.all_greedy:
            verdict = accept_tree_greedy(most_likely(logits), drafted, tree_mask)
        else:
            assert proposal.tree_q is not None
            assert proposal.support is not None
            u_last = to_device(uniforms(seeds, numbers, Stream.LAST, 1)[:, 0], device)
            verdict = accept_tree(
                lambda end: standardise(logits[index, end][:, None], settings)[:, 0],
                drafted,
                tree_mask,
                settings.greedy,
                to_device(self._u, device),
                u_last,
                proposal.tree_q,
                proposal.support,
            )
        self.path = verdict.path
        k = max(row.request.detail for row in rows)
        details = _details(logits, verdict, proposal, tree_mask, settings, k) if k else None
        integers = (verdict.end, verdict.last, broken(logits), drafted)
        super().__init__(mine, packed(integers, (verdict.p, verdict.q, verdict.beta), details))
        self._drafted = drafted.shape[1]

    def outcomes(self, host: Tensor) -> list[Outcome]:
        """Outcome of each row, from `packed` on the host."""
        depth = self._u.shape[1]
        count = 3 + self._drafted
        integers = host.tolist()
        reals = host[:, count : count + depth * (2 * BRANCHES + 1)].contiguous().view(torch.float32)
        chances = reals[:, :-depth].reshape(len(reals), 2, depth, BRANCHES).tolist()
        beta = reals[:, -depth:].tolist()
        details = [row[count + depth * (2 * BRANCHES + 1) : self.packed.shape[1]] for row in integers]
        return [self._outcome(b, integers[b][:count], chances[b], beta[b], details[b]) for b in range(len(self._trees))]

    def _outcome(
        self, b: int, integers: list[int], chances: list[list[list[float]]], beta: list[float], details: list[int]
    ) -> Outcome:
        tree, (end, last, is_broken, *tokens) = self._trees[b], integers
        path = tree.path(end)
        decided: list[_Offer] = []
        refused: list[list[_Offer]] = []
        for place, parent in enumerate((0, *path)):
            offered = [
                (tokens[child - 1], chances[0][place][rank], chances[1][place][rank], float(self._u[b, place, rank]))
                for rank, child in enumerate(tree.children[parent])
            ]
            if not offered:
                break
            kept = tree.children[parent].index(path[place]) if place < len(path) else None
            decided.append(offered[kept or 0])
            # q = 0 marks a place for which the drafter had no token left.
            others = offered[1:] if kept is None else offered[:kept]
            refused.append([other for other in others if other[2] > 0])
        line = tree.line(tree.children[end][0]) if len(decided) > len(path) else []
        width = len(details) // (self._u.shape[1] + 1)
        return Outcome(
            gamma=self._gammas[b],
            drafted=[tokens[token - 1] for token in (*path, *line)],
            accepted=len(path),
            last=last,
            p=[p for _, p, _, _ in decided],
            q=[q for _, _, q, _ in decided],
            u=[u for _, _, _, u in decided],
            beta=beta[: len(decided)],
            detail=[details[i : i + width] for i in range(0, len(details), width)] if width else [],
            broken=bool(is_broken),
            refused=refused,
            offered=len(tree),
            path=path,
        )


def _details(
    logits: Tensor, verdict: TreeVerdict, proposal: Proposal, tree_mask: TreeMask, settings: SamplingRows, k: int
) -> Tensor:
    """Top-logprobs [b, γ+1, n] of the accepted positions and the one behind them."""
    index = torch.arange(len(logits), device=logits.device)[:, None]
    places = torch.nn.functional.pad(verdict.path, (1, 0))
    judged = logits[index, places]
    first = tree_mask.children[index, places[:, :-1], 0]
    shown = torch.where(verdict.path > 0, verdict.path, first)
    drafted = proposal.tokens.gather(1, (shown - 1).clamp(min=0))
    p = q = None
    if verdict.left is not None and proposal.tree_q is not None and proposal.support is not None:
        p = standardise(judged, settings)
        q = p.new_zeros(*drafted.shape, logits.shape[-1])
        q[..., proposal.support.tokens] = proposal.tree_q[index, places[:, :-1].clamp(max=proposal.tree_q.shape[1] - 1)]
    return detail.pack(judged, p, settings.greedy, q, drafted, verdict.last, k, verdict.left)
