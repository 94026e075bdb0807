"""Head drafter: drafts with a layer of its own on the target's hidden states (`engine.speculation.drafters.head`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.request import Sampling
from specchat.engine.runner.runner import Runner
from specchat.engine.runner.to_device import to_device
from specchat.engine.runner.tree import BRANCHES, LONGEST, Tree, chain, tree_of
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.sampling.rng import Stream, uniforms
from specchat.engine.sampling.sampler import SamplingRows
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.speculation.drafters.base import Drafter
from specchat.engine.speculation.drafters.head.kv_window import HeadMemory
from specchat.engine.speculation.drafters.head.network import DraftHead
from specchat.engine.speculation.drafters.head.static_steps import StaticSteps
from specchat.engine.speculation.drafters.head.steps import DraftSteps, Extend, levels_of
from specchat.engine.speculation.drafters.head.weights import score_layer
from specchat.engine.speculation.proposal import Draft, Offers, Support, join

_STEADY = tree_of(2).first(4)
"""On the CPU, where a γ of its own was not asked for and may not be learnt: about what adapting comes to there."""
WINDOW = 256
"""Places a draft looks back: as far as the head has been trained on."""


class HeadDrafter(Drafter):
    """A head beside its target, with a memory in every slot.

    Every draft step is one pass of the head for all rows; tokens and distributions stay on the device. Drafts are trees
    of a fixed shape (`engine.runner.tree`): greedy rows offer the likeliest tokens, the others draw them without
    replacement. The head scores a part of the vocabulary only. Outside of it q is 0, which acceptance takes as it is
    (Leviathan et al. 2023, Appendix A.1 asks nothing of q but that the draft was drawn from it).

    Args:
        head: on the target's device, in its dtype.
        vocabulary: [V'], int64, the tokens that the head can draft.
        target: whose hidden states it reads; its taps are the head's.
        penalties: shared with the target, so that p and q know the same context.
        branches: whether to offer several tokens for a position; else drafts are chains.
    """

    name = "head"
    support: Support
    """The tokens that trees are drawn from."""
    buckets = range(2 * BRANCHES)
    """First choice to last for the first position, then for any later one."""
    later = tuple(bucket for bucket in buckets if bucket % BRANCHES)

    def __init__(
        self,
        head: DraftHead,
        vocabulary: Tensor,
        target: Runner,
        penalties: Penalties,
        *,
        branches: bool = True,
    ) -> None:
        self._branches = branches
        self._device = target.device
        scores, self.score_bytes = score_layer(head, target.output_rows(vocabulary))
        self._steps = DraftSteps(head, vocabulary, scores, target.embedding_rows, target.vocabulary)
        self.support = Support.of(vocabulary, target.vocabulary)
        self._penalties = penalties
        if self._device.type == "cpu":
            self.steady = _STEADY.depth
        self._memory = HeadMemory(head, target.cache.slots, target.cache.columns)
        self._static: StaticSteps | None = None
        if target.graph_runner is not None:
            pool = target.graph_runner.pool
            self._static = StaticSteps(self._steps, self._memory, WINDOW, pool, target.cache.slots)

    @property
    def bytes(self) -> int:
        """Memory beyond the head's weights."""
        return self._memory.bytes + self.score_bytes

    @property
    def graph_bytes(self) -> int:
        """Memory that its CUDA graphs share."""
        return self._static.bytes if self._static else 0

    def capture(self, samplings: Sequence[Sampling]) -> None:
        """All shapes of trees."""
        if self._static:
            self._static.capture(
                samplings, [tree_of(gamma) for gamma in range(1, LONGEST + 1)] if self._branches else []
            )

    def admit(self, row: SequenceState) -> None:
        """Find what is known of the prompt; the target reads again what is not."""
        row.cached = min(row.cached, self._memory.admit(row))

    def lend(self, row: SequenceState, source: int, length: int) -> int:
        """As many as the head knows in that slot."""
        return self._memory.lend(row, source, length)

    def exchange(self, one: int, other: int) -> None:
        """In the head's memory as well."""
        self._memory.exchange(one, other)

    def absorb(self, rows: Sequence[SequenceState], tapped: Tensor) -> None:
        """Keep the states of what the target has read."""
        self._memory.absorb(rows, tapped)

    def release(self, row: SequenceState) -> None:
        """Leave the slot's memory to the next turn."""
        self._memory.release(row)

    def offers(self, row: SequenceState) -> Offers:
        """A tree of fixed shape, or a chain."""
        return lambda gamma: _offer(self._tree_for(row, gamma) or chain(gamma))

    @torch.inference_mode()
    def propose(self, rows: Sequence[SequenceState], gammas: Sequence[int]) -> Draft:
        """Trees of `gammas[i]` positions; chains where they are long, or where a row's tokens are not drawn plainly."""
        if any(len(row.tokens) < 2 for row in rows):  # nothing has been read yet
            return Draft([[] for _ in rows], [0] * len(rows), None, [[] for _ in rows])
        alike: dict[tuple[Tree | None, bool], list[int]] = {}
        for i, (row, gamma) in enumerate(zip(rows, gammas, strict=True)):
            tree = self._tree_for(row, gamma)
            alike.setdefault((tree, tree is not None and row.request.sampling.greedy), []).append(i)
        parts = [
            (mine, self._tree([rows[i] for i in mine], tree))
            if tree
            else (mine, self._chain([rows[i] for i in mine], [gammas[i] for i in mine]))
            for (tree, _), mine in alike.items()
        ]
        return parts[0][1] if len(parts) == 1 else join(parts, len(rows), self._device)

    def _tree_for(self, row: SequenceState, gamma: int) -> Tree | None:
        """What a row is offered; None for a chain: where it is long, or the row's logits or acceptance are special."""
        sampling = row.request.sampling
        if not (self._branches and 0 < gamma <= LONGEST and sampling.lossless and not sampling.adjusts):
            return None
        free = row.request.gamma is None and not row.adaptive
        return _STEADY if free and gamma == self.steady == _STEADY.depth else tree_of(gamma)

    def _tree(self, rows: Sequence[SequenceState], tree: Tree) -> Draft:
        """The same tree for rows that are all greedy, or all not."""
        sampling, u = [row.request.sampling for row in rows], _uniforms(rows, len(tree))
        if self._static is not None:
            tokens, q = self._static.tree(rows, tree, u)
        else:
            settings = SamplingRows.of(sampling, self._device)
            state = self._memory.read(rows, self._steps.embed, WINDOW)
            extend = self._extend(rows, tree)
            levels = levels_of(tree, self._device)
            tokens, q = self._steps.tree(tree, levels, state, extend, settings, to_device(u, self._device))
        buckets, count = list(_offer(tree)[0]), len(rows)
        return Draft(tokens, [len(tree)] * count, None, [buckets] * count, [tree] * count, q, self.support)

    def _chain(self, rows: Sequence[SequenceState], gammas: Sequence[int]) -> Draft:
        """One token for each position, `max(gammas)` draft steps for all rows; q is kept unless every row is greedy."""
        steps, sampling = max(gammas), [row.request.sampling for row in rows]
        u, adjustment = _uniforms(rows, steps), self._penalties.of(rows)
        if self._static is not None and adjustment is None:
            tokens, q = self._static.chain(rows, steps, u)
        else:
            settings = SamplingRows.of(sampling, self._device)
            state = self._memory.read(rows, self._steps.embed, WINDOW)
            draws = to_device(u, self._device)
            tokens, q = self._steps.chain(steps, state, self._extend(rows, chain(steps)), settings, draws, adjustment)
        return Draft(tokens, list(gammas), q, [list(_offer(chain(gamma))[0]) for gamma in gammas])

    def _extend(self, rows: Sequence[SequenceState], tree: Tree) -> Extend:
        """Go on behind drafted tokens of the rows."""
        return lambda depth, state, embedded: self._memory.extend(
            rows, tree, tree.levels[depth], state, embedded, WINDOW
        )


def _uniforms(rows: Sequence[SequenceState], count: int) -> NDArray[np.float64]:
    """[B, count], float64, for this round's draws."""
    return uniforms([row.seed for row in rows], [row.rounds for row in rows], Stream.DRAFT, count)


@lru_cache
def _offer(tree: Tree) -> tuple[Sequence[int], Tree]:
    """A tree with its buckets: a token's rank among those offered for its position, apart for the first position."""
    ranks = [tree.children[parent].index(child) for child, parent in enumerate(tree.parents, 1)]
    return [rank + BRANCHES * (tree.depths[i] > 1) for i, rank in enumerate(ranks, 1)], tree
