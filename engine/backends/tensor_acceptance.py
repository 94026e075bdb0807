"""Acceptance on tensors: the reference rule for a batch, on a GPU as one captured graph per shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import zip_longest

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from specchat.engine.decoding import top_logprobs
from specchat.engine.decoding.acceptance import Drafted, Verdict, accept
from specchat.engine.decoding.draft import DraftBatch, Support
from specchat.engine.decoding.round import Outcome, tested_candidates
from specchat.engine.decoding.tree import BRANCHES, LONGEST, Tree, tree_of
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.device.device import CAPTURED, captured_width, to_device
from specchat.engine.device.graphs import FIRST, LATER, Function, Graphs, Inputs, Signature
from specchat.engine.request import DEFAULT_GAMMA
from specchat.engine.sampling import xtc
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.sampling.rng import Stream, token_uniforms, uniforms
from specchat.engine.sampling.sampler import (
    ANY,
    NUMBERS,
    SamplingFlags,
    SamplingRows,
    broken,
    coarse_flags,
    one_hot,
    setting_numbers,
    standardise,
)
from specchat.engine.sequence.sequence import SequenceState

_DEPTHS = (2, 4, 8)
"""Captured depths of trees."""
MOST_SHAPES = 1024
"""Captured shapes that are kept."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """Static parameters of a verdict, for which a graph is captured."""

    rows: int
    width: int
    """T: a row's last token and its draft."""
    widths: tuple[int, ...]
    """Per position, the most candidates."""
    flags: SamplingFlags
    details: int
    """Entries per list of top-logprobs; 0 for none."""
    support: int
    """Identity of the support of q; 0 for the whole vocabulary."""


class TensorAcceptance:
    """Accepts or rejects the drafts of a batch from logits on a device.

    Args:
        graphs: captured verdicts.
        penalties: bias and penalties of the rows.
    """

    def __init__(self, graphs: Graphs, penalties: Penalties) -> None:
        self._graphs = graphs
        self._penalties = penalties

    @torch.inference_mode()
    def judge(
        self,
        rows: Sequence[SequenceState],
        logits: Tensor,
        drafts: DraftBatch,
        gammas: Sequence[int],
        tapped: Tensor | None = None,
    ) -> TensorOutcomes:
        """Judge the drafts of a batch.

        Args:
            rows: B sequences.
            logits: [B, T, V], of the target.
            drafts: their drafts.
            gammas: [B], requested draft lengths.
            tapped: [B, T, taps x hidden size], or None.
        """
        logits, drafts = _masked(rows, logits, drafts)
        adjustment = self._penalties.of(rows)
        if adjustment is not None:
            inside = TreeMask.of(drafts.trees, logits.shape[1], logits.device).inside
            logits = adjustment.apply(logits, drafts.tokens, inside)
        if self._graphs.enabled and not drafts.branches and drafts.support:  # chains share their captured verdicts
            q = None if drafts.q is None else drafts.support.spread(drafts.q)
            drafts = replace(drafts, q=q, support=None)
        sampling = [row.request.sampling for row in rows]
        drawn = [each and row.draws for each, row in zip(drafts.drawn, rows, strict=True)]
        k = max(row.request.detail for row in rows)
        shape = self._shape(len(rows), drafts, SamplingFlags.of(sampling), k)
        mask = TreeMask.of(drafts.trees, shape.width, logits.device)
        seeds, rounds = [row.seed for row in rows], [row.rounds for row in rows]
        u = uniforms(seeds, rounds, Stream.ACCEPT, len(shape.widths) * BRANCHES).reshape(len(rows), -1, BRANCHES)
        numbers: dict[str, ArrayLike] = {
            "lengths": drafts.lengths,
            "chains": [not tree.branches for tree in drafts.trees],
            "settings": setting_numbers(sampling),
        }
        tensors = {"logits": logits, "tokens": drafts.tokens, "candidates": mask.candidates, "sources": mask.sources}
        if not shape.flags.all_greedy:
            starts = [len(row.tokens) for row in rows]
            numbers |= {"u": u, "u_own": token_uniforms(seeds, starts, len(shape.widths) + 1)}
            numbers["drawn"] = drawn
            if shape.flags.any_xtc:
                numbers["xtc"] = xtc.thresholds(rows, [tree.depths for tree in drafts.trees], shape.width)
            if drafts.q is not None:
                tensors["q"] = drafts.q
        function, signature = self._bucket(shape, logits.shape[-1], drafts.support)
        packed, path = self._graphs.call(shape, function, signature, numbers, tensors)
        count = len(rows)
        certain = [not drawn[i] and each.lossless for i, each in enumerate(sampling)]
        return TensorOutcomes(drafts, gammas, certain, u, packed[:count], path[:count], tapped, shape.width - 1)

    def plan(self, vocabulary: int, supports: Sequence[Support | None]) -> None:
        """Plan to capture the verdicts that rounds can meet.

        Args:
            vocabulary: V, width of the target's logits.
            supports: what drafters draw trees from; None for the whole vocabulary.
        """
        for rows in reversed(self._graphs.counts):
            for flags, k in (*((flags, 0) for flags in coarse_flags(rows)), (ANY, top_logprobs.MOST)):
                shapes: list[tuple[_Shape, Support | None]] = [
                    (_chain_shape(rows, width - 1, flags, k, 0), None) for width in reversed(CAPTURED)
                ]
                for support in supports:
                    shapes += [(_tree_shape(rows, (1,) * each, flags, k, _id(support)), support) for each in _DEPTHS]
                for shape, support in shapes:
                    rank = FIRST if rows == 1 and not k and len(shape.widths) <= DEFAULT_GAMMA else LATER + rows
                    self._graphs.plan(rank, shape, *self._bucket(shape, vocabulary, support))

    def _shape(self, rows: int, drafts: DraftBatch, flags: SamplingFlags, k: int) -> _Shape:
        """The shape of a batch; with captured graphs, the smallest one that covers it."""
        longest, widths, support = max(drafts.lengths), _widths(drafts.trees), _id(drafts.support)
        if not self._graphs.enabled or k > top_logprobs.MOST:
            return _Shape(rows, 1 + longest, widths, flags, k, support)
        count = self._graphs.count(rows)
        flags, k = (ANY, top_logprobs.MOST) if k else (flags.coarse(count), 0)
        if drafts.branches:
            return _tree_shape(count, widths, flags, k, support)
        return _chain_shape(count, longest, flags, k, support)

    def _bucket(
        self, shape: _Shape, vocabulary: int, support: Support | None
    ) -> tuple[Function, Callable[[], Signature]]:
        """The function of a shape and what makes its signature."""
        return partial(_judge, shape=shape, support=support), partial(self._signature, shape, vocabulary, support)

    def _signature(self, shape: _Shape, vocabulary: int, support: Support | None) -> Signature:
        rows, width, depth = shape.rows, shape.width, len(shape.widths)
        most = self._graphs.counts[-1] * CAPTURED[-1] // (rows * width) + 1
        tensors: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "logits": ((rows, width, vocabulary), torch.float32),
            "tokens": ((rows, width - 1), torch.long),
            "candidates": ((rows, width, BRANCHES), torch.long),
            "sources": ((rows, width, BRANCHES), torch.long),
        }
        size = vocabulary if support is None else len(support.tokens)
        integers: dict[str, tuple[int, ...]] = {"lengths": (rows,), "chains": (rows,)}
        reals: dict[str, tuple[int, ...]] = {"settings": (rows, NUMBERS)}
        if not shape.flags.all_greedy:
            integers["drawn"] = (rows,)
            reals |= {"u": (rows, depth, BRANCHES), "u_own": (rows, depth + 1)}
            reals |= {"xtc": (rows, width)} if shape.flags.any_xtc else {}
            if depth:
                tensors["q"] = ((rows, width, size), torch.float32)
        return Signature(integers, reals, tensors, {"logits": most, "q": most * -(-vocabulary // size)})


@dataclass(frozen=True, slots=True)
class TensorOutcomes:
    """Outcomes of a batch, on the device until `outcomes`."""

    drafts: DraftBatch
    gammas: Sequence[int]
    """[B], requested draft lengths."""
    certain: Sequence[bool]
    """[B], as in `Outcome`."""
    u: NDArray[np.float64]
    """[B, γ, `BRANCHES`], uniforms of the candidates."""
    packed: Tensor
    """[B, n], int32, from `_judge`."""
    path: Tensor
    """[B, γ], int64, accepted nodes."""
    tapped: Tensor | None
    """[B, T, taps x hidden size], or None."""
    width: int
    """Tokens per row in `packed`."""

    def outcomes(self) -> list[Outcome]:
        """Outcome of each row, by one copy from the device."""
        trees, depth, host = self.drafts.trees, self.path.shape[1], self.packed.cpu()
        first = 3 + self.width
        last_real = first + depth * (2 * BRANCHES + 1)
        integers, listed = host.tolist(), (host.shape[1] - last_real) // (depth + 1)
        reals = host[:, first:last_real].contiguous().view(torch.float32).tolist()
        outcomes = []
        for b, tree in enumerate(trees):
            end, last, is_broken, *drafted = integers[b][:first]
            path, detail = tree.path(end), integers[b][last_real:]
            outcomes.append(
                Outcome(
                    self.gammas[b],
                    drafted,
                    tree,
                    path,
                    last,
                    bool(is_broken),
                    _tested_chances(tree, path, reals[b], depth),
                    lambda index, own=self.u[b]: float(own.flat[index]),  # type: ignore[misc]
                    reals[b][2 * depth * BRANCHES :],
                    self.certain[b],
                    [detail[i : i + listed] for i in range(0, len(detail), listed or 1)],
                )
            )
        return outcomes

    def hidden_states(self) -> Tensor | None:
        """[B, T, taps x hidden size] of each row's last token and the accepted tokens."""
        if self.tapped is None or not self.drafts.branches:
            return self.tapped
        places = torch.nn.functional.pad(self.path, (1, 0))[:, : self.tapped.shape[1]]
        return self.tapped[torch.arange(len(places), device=places.device)[:, None], places]


def _tested_chances(
    tree: Tree, path: Sequence[int], reals: Sequence[float], depth: int
) -> Iterator[tuple[float, float]]:
    """p(x) and q(x) of the tested candidates, from p and then q of all [γ, `BRANCHES`] places."""
    for place, count in enumerate(tested_candidates(tree, path)):
        for i in range(place * BRANCHES, place * BRANCHES + count):
            yield reals[i], reals[depth * BRANCHES + i]


def _judge(inputs: Inputs, shape: _Shape, support: Support | None) -> tuple[Tensor, Tensor]:
    """A verdict for the host [B, n], int32 with reals as float32 bits; and the accepted path [B, γ].

    A row holds the end node, the last token, whether logits are broken, K tokens, p and q of all candidates, β, and the
    details.
    """
    logits, tokens = inputs["logits"], inputs["tokens"]
    settings = SamplingRows.from_numbers(inputs["settings"], shape.flags, inputs.get("xtc"))
    candidates = inputs["candidates"]
    mask = TreeMask(candidates, candidates, candidates, inputs["sources"], shape.widths, ())
    q = inputs.get("q")
    drawn = None if q is None else (inputs["drawn"] > 0) & ~settings.greedy
    drafted = Drafted(tokens, mask, q, support, drawn, inputs["chains"] > 0)
    verdict = accept(logits, drafted, settings, inputs.get("u", logits), inputs.get("u_own", logits))
    details = _details(logits, verdict, drafted, settings, shape.details) if shape.details else None
    integers = (verdict.end, verdict.last, broken(logits, inputs["lengths"]), tokens)
    reals = (verdict.p, verdict.q, verdict.beta)
    whole = torch.cat([part.reshape(len(logits), -1).int() for part in integers], dim=1)
    real = torch.cat([part.flatten(1).float() for part in reals], dim=1).view(torch.int32)
    parts = [whole, real] if details is None else [whole, real, details.flatten(1)]
    return torch.cat(parts, dim=1), verdict.path


def _details(logits: Tensor, verdict: Verdict, drafted: Drafted, settings: SamplingRows, k: int) -> Tensor:
    """Top-logprobs [B, γ+1, n] of the accepted positions and the one after them."""
    index = torch.arange(len(logits), device=logits.device)[:, None]
    nodes = torch.nn.functional.pad(verdict.path, (1, 0))
    judged = logits[index, nodes]
    candidates = drafted.tree_mask.candidates[index, nodes[:, :-1]]
    shown = torch.where(verdict.path > 0, verdict.path, candidates[..., 0])
    tokens = drafted.tokens.gather(1, (shown - 1).clamp(min=0))
    p = None if verdict.residual is None else standardise(judged, settings.at(nodes))
    q = None
    if p is not None and drafted.q is not None and drafted.drawn is not None:
        rank = (candidates == shown[..., None]).int().argmax(-1, keepdim=True)
        source = drafted.tree_mask.sources[index, nodes[:, :-1]].gather(-1, rank)[..., 0]
        q = drafted.q[index, source.clamp(max=drafted.q.shape[1] - 1)]
        q = q if drafted.support is None else drafted.support.spread(q)
        q = torch.where(drafted.drawn[:, None, None], q, one_hot(tokens, logits.shape[-1]))
    return top_logprobs.pack(judged, p, settings.greedy, q, tokens, verdict.last, k, verdict.residual)


def _widths(trees: Sequence[Tree]) -> tuple[int, ...]:
    """Per position, the most candidates of any node."""
    each = ([max(len(tree.candidates[node]) for node in level) for level in tree.levels] for tree in trees)
    return tuple(map(max, zip_longest(*each, fillvalue=0)))


def _id(support: Support | None) -> int:
    return 0 if support is None else id(support)


def _chain_shape(rows: int, length: int, flags: SamplingFlags, details: int, support: int) -> _Shape:
    """The captured shape for chains of up to `length` tokens."""
    width = captured_width(length + 1)
    return _Shape(rows, width, (1,) * (width - 1), flags, details, support)


def _tree_shape(rows: int, widths: tuple[int, ...], flags: SamplingFlags, details: int, support: int) -> _Shape:
    """The captured shape for trees of these widths, which also covers all trees of fixed shape."""
    depth = next((each for each in _DEPTHS if each >= len(widths)), len(widths))
    if details:
        depth = max(depth, _DEPTHS[-1])
    covered = (BRANCHES,) * depth
    if not (details or flags.all_greedy):  # else the cost does not depend on the widths
        usual = _usual_widths()[:depth]
        covered = tuple(map(max, zip_longest(widths, usual, [0] * depth, fillvalue=0)))
    return _Shape(rows, CAPTURED[-1], covered, flags, details, support)


@lru_cache
def _usual_widths() -> tuple[int, ...]:
    """Per depth, the most children of any node of the trees of fixed shape."""
    return _widths([tree_of(gamma) for gamma in range(1, LONGEST + 1)])


def _masked(rows: Sequence[SequenceState], logits: Tensor, drafts: DraftBatch) -> tuple[Tensor, DraftBatch]:
    """Mask logits [B, T, V] of the target after each node, and the drafts' q; unchanged if no row is constrained.

    A mask is a function of the text before a position, drafted tokens included, as penalties are: logits of tokens that
    may not follow it become -inf before anything else. Drafts are cut where a token is forbidden
    (`engine.decoding.constrained`). What remains of a drawn draft is distributed as q without the forbidden tokens, so
    q is masked too; then acceptance is exact.
    """
    constrained = [i for i, row in enumerate(rows) if row.constraint]
    if not constrained:
        return logits, drafts
    logits = logits.to(torch.float32, copy=True)
    q = None if drafts.q is None else drafts.q.clone()
    for i in constrained:
        forbidden = ~_allowed(rows[i], logits)
        logits[i, : len(forbidden)].masked_fill_(forbidden, -torch.inf)
        # A tree that lists its candidates is not cut, and its distributions belong to candidates, not to nodes.
        if q is not None and drafts.drawn[i] and drafts.trees[i].tests is None:
            own = q[i, : len(forbidden)]
            places = slice(None) if drafts.support is None else drafts.support.tokens
            own.masked_fill_(forbidden[: len(own), places], 0.0)
            own /= own.sum(-1, keepdim=True).clamp_(min=torch.finfo(own.dtype).tiny)
    return logits, replace(drafts, q=q)


def _allowed(row: SequenceState, logits: Tensor) -> Tensor:
    """Whether each token may follow each node of a row's draft: [1 + K, V], bool."""
    assert row.constraint
    words = to_device(row.constraint.masks(row.tokens), logits.device)
    bits = words[..., None] >> torch.arange(32, dtype=torch.int32, device=words.device) & 1
    return bits.flatten(1)[:, : logits.shape[-1]].bool()
