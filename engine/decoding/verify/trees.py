"""Verification of rows whose drafts are trees."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from specchat.engine.backends.region import Numbers, Region, Regions
from specchat.engine.cache.kv_cache import KVCache
from specchat.engine.decoding.proposal import Proposal, Support
from specchat.engine.decoding.tree import BRANCHES
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.decoding.trials import trial_mask
from specchat.engine.decoding.verify import top_logprobs as detail
from specchat.engine.decoding.verify.outcome import Outcome, Verified, packed
from specchat.engine.decoding.verify.tree_acceptance import TreeVerdict, accept_tree, accept_tree_greedy
from specchat.engine.decoding.verify.tree_shape import WIDTH, TreeShape, covering
from specchat.engine.device.to_device import to_device
from specchat.engine.sampling.rng import Stream, uniforms
from specchat.engine.sampling.sampler import broken, most_likely, standardise
from specchat.engine.sampling.sampling_rows import NUMBERS, SamplingFlags, SamplingRows, setting_numbers
from specchat.engine.sequence.sequence import SequenceState

_Offer = tuple[int, float, float, float]
"""A drafted token with its p, q and u."""


class VerifiedTrees(Verified):
    """Verified trees of b rows of a batch, with the results still on the device; accepted branches are kept in the
    cache.

    Args:
        mine: [b], indices of the rows in the batch.
        rows: [b], their sequences.
        logits: [b, K+1, V], the target's.
        proposal: their drafts; K tokens in the largest tree.
        gammas: [b], draft lengths asked for.
        cache: the target's.
        regions: verdicts of fixed shape, on a GPU.
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
        cache: KVCache,
        regions: Regions | None = None,
    ) -> None:
        trees = proposal.whole_trees
        assert trees is not None
        drafted, device = proposal.tokens, logits.device
        sampling = [row.request.sampling for row in rows]
        k, flags = max(row.request.detail for row in rows), SamplingFlags.of(sampling)
        if k > detail.MOST:
            regions = None
        width = drafted.shape[1] + 1 if regions is None else WIDTH
        tree_mask, sources = TreeMask.of(trees, width, device), None
        self._tested = [tree.children for tree in trees]
        """By row and node, what is tested behind it, in order; a child is there once for each of its trials."""
        if proposal.trials:
            merged = [trials for trials in proposal.trials if trials]
            tree_mask, sources = trial_mask(tree_mask, merged)
            self._tested = [trials.children for trials in merged]
        shape = None
        if regions is not None:
            count, room = regions.count(len(rows)), covering(tree_mask.widths)
            shape = TreeShape.of(count, logits, flags, room, details=k, merged=sources is not None)
        widths = shape.widths if shape else tree_mask.widths
        seeds, numbers = [row.seed for row in rows], [row.rounds for row in rows]
        self._u = uniforms(seeds, numbers, Stream.ACCEPT, len(widths) * BRANCHES).reshape(-1, len(widths), BRANCHES)
        self._trees, self._gammas = trees, gammas
        all_greedy = shape.flags.all_greedy if shape else flags.all_greedy
        u_last = None if all_greedy else uniforms(seeds, numbers, Stream.LAST, 1)[:, 0]
        slots, starts = [row.slot for row in rows], [row.cached for row in rows]
        if regions is None or shape is None:
            settings = SamplingRows.of(sampling, device)
            draws = None if u_last is None else (to_device(self._u, device), to_device(u_last, device))
            on_device = to_device([proposal.lengths, slots, starts], device).unbind()
            whole, self.path = _verdict(logits, proposal, tree_mask, sources, settings, draws, k, cache, on_device)
        else:
            spare = [cache.columns - 1] * (shape.rows - len(rows))
            on_host: dict[str, ArrayLike] = {"lengths": proposal.lengths, "slots": slots, "starts": [*starts, *spare]}
            if u_last is not None:
                on_host |= {"u": self._u, "u_last": u_last, "settings": setting_numbers(sampling)}
            inputs = {"logits": logits, "drafted": drafted, "children": tree_mask.children}
            region = tree_region(regions, shape, proposal.support, cache)
            if proposal.tree_q is not None:
                inputs["q"] = proposal.tree_q
            elif "q" in region.inputs:
                region.inputs["q"].zero_()  # greedy rows, in a verdict for any
            if sources is not None:
                inputs["sources"] = sources
            whole, self.path = (part[: len(rows)] for part in region(on_host, inputs))
        super().__init__(mine, whole)
        self._drafted = width - 1

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
        path, tested = tree.path(end), self._tested[b]
        decided: list[_Offer] = []
        refused: list[list[_Offer]] = []
        for place, parent in enumerate((0, *path)):
            offered = [
                (tokens[child - 1], chances[0][place][rank], chances[1][place][rank], float(self._u[b, place, rank]))
                for rank, child in enumerate(tested[parent])
            ]
            if not offered:
                break
            # Of the trials of one token only the first can accept it: it leaves nothing of p there.
            kept = tested[parent].index(path[place]) if place < len(path) else None
            decided.append(offered[kept or 0])
            # q = 0 marks a place for which the drafter had no token left.
            others = offered[1:] if kept is None else offered[:kept]
            refused.append([other for other in others if other[2] > 0])
        line = tree.line(tested[end][0]) if len(decided) > len(path) else []
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


def _verdict(
    logits: Tensor,
    proposal: Proposal,
    tree_mask: TreeMask,
    sources: Tensor | None,
    settings: SamplingRows,
    draws: tuple[Tensor, Tensor] | None,
    k: int,
    cache: KVCache,
    numbers: Sequence[Tensor],
) -> tuple[Tensor, Tensor]:
    """All that the host needs [b, n], int32, and the path [b, γ]; the accepted branches are kept in the cache.

    Args:
        logits: [b, K+1, V].
        proposal: of b rows.
        tree_mask: of its trees, or of their trials.
        sources: of the trials (`trial_mask`); None where there are none.
        settings: of b rows.
        draws: uniforms [b, γ, `BRANCHES`] and [b]; None if all rows are greedy.
        k: entries per list of details; 0 for none.
        cache: the target's.
        numbers: [b] each: how many tokens a row drafted, its slot, and where its pass began.
    """
    lengths, slots, starts = numbers
    if draws is None:
        verdict = accept_tree_greedy(most_likely(logits), proposal.tokens, tree_mask)
    else:
        index = torch.arange(len(logits), device=logits.device)
        verdict = accept_tree(
            lambda end: standardise(logits[index, end][:, None], settings)[:, 0],
            proposal.tokens,
            tree_mask,
            settings.greedy,
            *draws,
            proposal.tree_q,
            proposal.support,
            sources,
        )
    cache.keep(slots, starts, verdict.path)
    details = _details(logits, verdict, proposal, tree_mask, sources, settings, k) if k else None
    integers = (verdict.end, verdict.last, broken(logits, lengths), proposal.tokens)
    return packed(integers, (verdict.p, verdict.q, verdict.beta), details), verdict.path


def tree_region(regions: Regions, shape: TreeShape, support: Support | None, cache: KVCache) -> Region:
    """`_verdict` of a fixed shape, for trees that are drawn from `support`; None where they are not, or were merged."""
    return regions.of((shape, id(support)), lambda: _region(regions, shape, support, cache))


def _region(regions: Regions, shape: TreeShape, support: Support | None, cache: KVCache) -> Region:
    device, rows, vocabulary = regions.pool.device, shape.rows, shape.vocabulary
    widths, most = shape.widths, regions.rows * WIDTH
    numbers = Numbers(
        device,
        dict.fromkeys(("lengths", "slots", "starts"), (rows,)),
        {"u": (rows, len(widths), BRANCHES), "u_last": (rows,), "settings": (rows, NUMBERS)},
    )
    numbers.send({"starts": [cache.columns - 1] * rows})
    logits_shape = rows, WIDTH, vocabulary
    inputs = {
        "logits": regions.shared("logits", logits_shape, most * vocabulary, torch.float32),
        "drafted": torch.zeros(rows, WIDTH - 1, dtype=torch.long, device=device),
        "children": torch.zeros(rows, WIDTH, BRANCHES, dtype=torch.long, device=device),
    }
    if shape.merged:
        inputs["sources"] = torch.zeros(rows, WIDTH, BRANCHES, dtype=torch.long, device=device)
    if not shape.flags.all_greedy and (support is not None or shape.merged):
        size = vocabulary if support is None else len(support.tokens)
        inputs["q"] = regions.shared("tree q", (rows, WIDTH, size), most * size, torch.float32)

    def run() -> tuple[Tensor, Tensor]:
        settings = SamplingRows.from_numbers(numbers["settings"], shape.flags)
        draws = None if shape.flags.all_greedy else (numbers["u"], numbers["u_last"])
        children = inputs["children"]
        tree_mask = TreeMask(children, children, children, widths, ())  # what a verdict asks of it
        whole = Proposal(inputs["drafted"], [], None, None, inputs.get("q"), support)
        on_device = [numbers[name] for name in ("lengths", "slots", "starts")]
        sources = inputs.get("sources")
        return _verdict(inputs["logits"], whole, tree_mask, sources, settings, draws, shape.details, cache, on_device)

    return regions.region(numbers, inputs, run)


def _details(
    logits: Tensor,
    verdict: TreeVerdict,
    proposal: Proposal,
    tree_mask: TreeMask,
    sources: Tensor | None,
    settings: SamplingRows,
    k: int,
) -> Tensor:
    """Top-logprobs [b, γ+1, n] of the accepted positions and the one behind them."""
    index = torch.arange(len(logits), device=logits.device)[:, None]
    places = torch.nn.functional.pad(verdict.path, (1, 0))
    judged = logits[index, places]
    first = tree_mask.children[index, places[:, :-1], 0]
    shown = torch.where(verdict.path > 0, verdict.path, first)
    drafted = proposal.tokens.gather(1, (shown - 1).clamp(min=0))
    p = None if verdict.left is None else standardise(judged, settings)
    q = None
    if p is not None and proposal.tree_q is not None and sources is not None:
        rank = (tree_mask.children[index, places[:, :-1]] == shown[..., None]).int().argmax(-1, keepdim=True)
        q = proposal.tree_q[index, sources[index, places[:, :-1]].gather(-1, rank)[..., 0]]
    elif p is not None and proposal.tree_q is not None and proposal.support is not None:
        q = p.new_zeros(*drafted.shape, logits.shape[-1])
        q[..., proposal.support.tokens] = proposal.tree_q[index, places[:, :-1].clamp(max=proposal.tree_q.shape[1] - 1)]
    return detail.pack(judged, p, settings.greedy, q, drafted, verdict.last, k, verdict.left)
