"""Verification of rows whose drafts are trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from specchat.engine.runner.kv_cache import KVCache
from specchat.engine.runner.padding import CAPTURED
from specchat.engine.runner.region import Numbers, Region, Regions
from specchat.engine.runner.to_device import to_device
from specchat.engine.runner.tree import BRANCHES, LONGEST, tree_of
from specchat.engine.runner.tree_mask import TreeMask
from specchat.engine.sampling.rng import Stream, uniforms
from specchat.engine.sampling.sampler import broken, most_likely, standardise
from specchat.engine.sampling.sampling_rows import ANY, NUMBERS, SamplingFlags, SamplingRows, setting_numbers
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.speculation.proposal import Proposal, Support
from specchat.engine.speculation.verify import top_logprobs as detail
from specchat.engine.speculation.verify.outcome import Outcome, Verified, packed
from specchat.engine.speculation.verify.tree_acceptance import TreeVerdict, accept_tree, accept_tree_greedy

_Offer = tuple[int, float, float, float]
"""A drafted token with its p, q and u."""


_WIDTH = CAPTURED[-1]
"""Tokens of trees on a GPU, padded: as many as there ever are, so that there are few shapes."""
_DEPTHS = (2, 4, 8)
"""Depths of trees on a GPU, padded."""


@dataclass(frozen=True, slots=True)
class TreeShape:
    """What a graph of trees' verdicts is made for."""

    rows: int
    vocabulary: int
    flags: SamplingFlags
    widths: tuple[int, ...]
    """Per depth, room for so many children of a node (`covering`)."""
    details: int
    """Entries per list; 0 for none."""

    @classmethod
    def of(
        cls, rows: int, logits: Tensor, flags: SamplingFlags, widths: tuple[int, ...], *, details: int = 0
    ) -> TreeShape:
        """The shape that serves for logits [B, T, V], with `rows` rows (`Regions.count`)."""
        if details:  # rare, so of few shapes
            return cls(rows, logits.shape[2], ANY, _deepest(widths), detail.MOST)
        return cls(rows, logits.shape[2], flags.coarse(rows), widths, 0)


def covering(widths: tuple[int, ...]) -> tuple[int, ...]:
    """Room for trees of these widths (`TreeMask.widths`) and for all that are drafted: so that there are few shapes."""
    depth = next((each for each in _DEPTHS if each >= len(widths)), len(widths))
    usual = (*_usual_widths(), *[0] * depth)[:depth]
    return tuple(max(pair) for pair in zip_longest(widths, usual, fillvalue=0))


def _deepest(widths: tuple[int, ...]) -> tuple[int, ...]:
    """As `covering`, as deep as trees ever are."""
    return covering((*widths, *[0] * (_DEPTHS[-1] - len(widths))))


@lru_cache
def _usual_widths() -> tuple[int, ...]:
    """Per depth, the most children of any node of any tree that is drafted."""
    trees = [tree_of(gamma) for gamma in range(1, LONGEST + 1)]
    widths = ([max(len(tree.children[token]) for token in level) for level in tree.levels] for tree in trees)
    return tuple(map(max, zip_longest(*widths, fillvalue=0)))


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
        width = drafted.shape[1] + 1 if regions is None else _WIDTH
        tree_mask = TreeMask.of(trees, width, device)
        shape = None
        if regions is not None:
            shape = TreeShape.of(regions.count(len(rows)), logits, flags, covering(tree_mask.widths), details=k)
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
            whole, self.path = _verdict(logits, proposal, tree_mask, settings, draws, k, cache, on_device)
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


def _verdict(
    logits: Tensor,
    proposal: Proposal,
    tree_mask: TreeMask,
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
        tree_mask: of its trees.
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
        )
    cache.keep(slots, starts, verdict.path)
    details = _details(logits, verdict, proposal, tree_mask, settings, k) if k else None
    integers = (verdict.end, verdict.last, broken(logits, lengths), proposal.tokens)
    return packed(integers, (verdict.p, verdict.q, verdict.beta), details), verdict.path


def drafted_widths() -> set[tuple[int, ...]]:
    """All that `covering` gives for trees that are drafted."""
    return {covering(_usual_widths()[:depth]) for depth in range(1, LONGEST + 1)}


def tree_region(regions: Regions, shape: TreeShape, support: Support | None, cache: KVCache) -> Region:
    """`_verdict` of a fixed shape, for trees that are drawn from `support`; None where they are not drawn."""
    return regions.of((shape, id(support)), lambda: _region(regions, shape, support, cache))


def _region(regions: Regions, shape: TreeShape, support: Support | None, cache: KVCache) -> Region:
    device, rows, vocabulary = regions.pool.device, shape.rows, shape.vocabulary
    widths, most = shape.widths, regions.rows * _WIDTH
    numbers = Numbers(
        device,
        dict.fromkeys(("lengths", "slots", "starts"), (rows,)),
        {"u": (rows, len(widths), BRANCHES), "u_last": (rows,), "settings": (rows, NUMBERS)},
    )
    numbers.send({"starts": [cache.columns - 1] * rows})
    logits_shape = rows, _WIDTH, vocabulary
    inputs = {
        "logits": regions.shared("logits", logits_shape, most * vocabulary, torch.float32),
        "drafted": torch.zeros(rows, _WIDTH - 1, dtype=torch.long, device=device),
        "children": torch.zeros(rows, _WIDTH, BRANCHES, dtype=torch.long, device=device),
    }
    if not shape.flags.all_greedy and support is not None:
        size = len(support.tokens)
        inputs["q"] = regions.shared("tree q", (rows, _WIDTH, size), most * size, torch.float32)

    def run() -> tuple[Tensor, Tensor]:
        settings = SamplingRows.from_numbers(numbers["settings"], shape.flags)
        draws = None if shape.flags.all_greedy else (numbers["u"], numbers["u_last"])
        children = inputs["children"]
        tree_mask = TreeMask(children, children, children, widths, ())  # what a verdict asks of it
        whole = Proposal(inputs["drafted"], [], None, None, inputs.get("q"), support)
        on_device = [numbers[name] for name in ("lengths", "slots", "starts")]
        return _verdict(inputs["logits"], whole, tree_mask, settings, draws, shape.details, cache, on_device)

    return regions.region(numbers, inputs, run)


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
    p = None if verdict.left is None else standardise(judged, settings)
    q = None
    if p is not None and proposal.tree_q is not None and proposal.support is not None:
        q = p.new_zeros(*drafted.shape, logits.shape[-1])
        q[..., proposal.support.tokens] = proposal.tree_q[index, places[:, :-1].clamp(max=proposal.tree_q.shape[1] - 1)]
    return detail.pack(judged, p, settings.greedy, q, drafted, verdict.last, k, verdict.left)
