"""Head drafter: drafts with a small network on the target's hidden states (`engine.drafters.head`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.drafter import Drafter, DrafterProfile, RowProfile
from specchat.engine.decoding.gamma.budget import Budget
from specchat.engine.decoding.proposal import Draft, Support, join
from specchat.engine.decoding.tree import LONGEST, Tree, chain, tree_of
from specchat.engine.device.to_device import to_device
from specchat.engine.drafters.context import BuildContext
from specchat.engine.drafters.fixed_trees import BUCKETS, LATER, may_branch, offer
from specchat.engine.drafters.growing.grow import Asked
from specchat.engine.drafters.growing.growth import EXPECTED, GRADES
from specchat.engine.drafters.growing.on_kernels import grow_on_kernels
from specchat.engine.drafters.head.captured_steps import MOST_SHAPES, CapturedSteps
from specchat.engine.drafters.head.layers import Head, layer_of
from specchat.engine.drafters.head.memory import HeadMemory
from specchat.engine.drafters.head.packed_layer import PackedLayer
from specchat.engine.drafters.head.placed_layer import PlacedLayer
from specchat.engine.drafters.head.steps import DraftSteps, Extend, levels_of
from specchat.engine.request import DEFAULT_GAMMA
from specchat.engine.sampling.rng import Stream, uniforms
from specchat.engine.sampling.sampling_rows import SamplingRows
from specchat.engine.sequence.sequence import SequenceState

_STEADY = tree_of(2).first(4)
"""Default on the CPU without a requested or adaptive γ: about the average of adaptive γ."""


class HeadDrafter(Drafter):
    """A head next to its target, with a memory in every slot.

    Every draft step is one pass of the head for all rows; tokens and distributions stay on the device. Drafts are trees
    of a fixed shape (`engine.decoding.tree`): greedy rows offer the likeliest tokens, the others draw them without
    replacement. The head scores a part of the vocabulary only. Outside of it q is 0, which acceptance takes as it is
    (Leviathan et al. 2023, Appendix A.1 asks nothing of q but that the draft was drawn from it).

    Args:
        head: on the target's device, in its dtype.
        vocabulary: [V'], int64, the tokens that the head can draft.
        target: whose hidden states it reads; its taps are the head's.
        branches: whether to offer several tokens for a position; else drafts are chains.
    """

    name = "head"
    support: Support

    def __init__(
        self,
        head: Head,
        vocabulary: Tensor,
        target: Backend,
        *,
        branches: bool = True,
    ) -> None:
        self._branches = branches
        self._device = target.device
        self._layer, self.score_bytes = layer_of(head, vocabulary, target)
        self._steps = DraftSteps(vocabulary, target.vocabulary)
        self._support = Support.of(vocabulary, target.vocabulary)
        self.supports = (self._support,) if branches else ()
        self._penalties = target.penalties
        gamma = _STEADY.depth if self._device.type == "cpu" else DEFAULT_GAMMA
        self.profile = DrafterProfile(BUCKETS, LATER, default_gamma=gamma)
        self._memory = HeadMemory(self._layer, target.cache.slots)
        self._static: CapturedSteps | None = None
        if isinstance(self._layer, PackedLayer):
            self.profile = DrafterProfile(range(2 * GRADES), expected_rates=EXPECTED)
        elif isinstance(self._layer, PlacedLayer) and target.capabilities.captured:
            self._static = CapturedSteps(self._steps, self._memory, self._layer, target.graphs(MOST_SHAPES))

    @property
    def cache_bytes(self) -> int:  # type: ignore[override]
        """Memory beyond the head's weights."""
        return self._layer.bytes + self.score_bytes

    @property
    def graph_bytes(self) -> int:  # type: ignore[override]
        """Memory that its CUDA graphs share."""
        return self._static.bytes if self._static else 0

    def warm_up(self) -> float | None:
        """Capture all shapes of trees and chains; time a step of a packed head."""
        if self._static:
            longest = min(LONGEST, self._layer.deepest) if self._branches else 0
            self._static.capture([tree_of(gamma) for gamma in range(1, longest + 1)])
        return self._layer.time_step() if isinstance(self._layer, PackedLayer) else None

    def admit(self, row: SequenceState) -> RowProfile:
        """Find the hidden states that are known of the prompt; the target reads the other tokens again."""
        row.cached = min(row.cached, self._memory.admit(row))
        if self._grows(row):
            return RowProfile(grows=True)
        deepest = self._layer.deepest
        return RowProfile(lambda gamma: offer(self._tree_for(row, min(gamma, deepest)) or chain(min(gamma, deepest))))

    def reuse_prefix(self, row: SequenceState, source: int, length: int) -> int:
        """As many tokens as have known hidden states in that slot."""
        return self._memory.reuse_prefix(row, source, length)

    def on_hidden_states(
        self, rows: Sequence[SequenceState], states: Tensor | Sequence[Tensor], lengths: Sequence[int] | None = None
    ) -> None:
        """Keep the states of what the target has read."""
        self._memory.absorb(rows, states, lengths)

    def release(self, row: SequenceState) -> None:
        """Leave the slot's memory to the next turn."""
        self._memory.release(row)

    def propose(
        self, rows: Sequence[SequenceState], gammas: Sequence[int], budgets: Sequence[Budget | None] = ()
    ) -> Draft:
        """Trees of `gammas[i]` positions; chains where they are long, or where a row's tokens are not drawn plainly."""
        if any(len(row.tokens) < 2 for row in rows):  # nothing has been read yet
            return Draft.of_chains([[] for _ in rows], [[] for _ in rows])
        gammas = [min(gamma, self._layer.deepest) for gamma in gammas]
        if all(self._grows(row) for row in rows):
            return self._grow(rows, gammas, budgets or [None] * len(rows))
        return self._propose_each(rows, gammas, budgets)

    @torch.inference_mode()
    def _propose_each(
        self, rows: Sequence[SequenceState], gammas: Sequence[int], budgets: Sequence[Budget | None]
    ) -> Draft:
        """The drafts of rows of which not all grow."""
        alike: dict[tuple[Tree | None, bool, bool], list[int]] = {}
        for i, (row, gamma) in enumerate(zip(rows, gammas, strict=True)):
            grows = self._grows(row)
            tree = None if grows else self._tree_for(row, gamma)
            alike.setdefault((tree, tree is not None and row.request.sampling.greedy, grows), []).append(i)
        parts: list[tuple[list[int], Draft]] = []
        for (tree, _, grows), mine in alike.items():
            some, lengths = [rows[i] for i in mine], [gammas[i] for i in mine]
            if grows:
                draft = self._grow(some, lengths, [budgets[i] if budgets else None for i in mine])
            else:
                draft = self._tree(some, tree) if tree else self._chain(some, lengths)
            parts.append((mine, draft))
        return parts[0][1] if len(parts) == 1 else join(parts, len(rows), self._device)

    def _grows(self, row: SequenceState) -> bool:
        """On the quantised kernels, where every verified token costs; not with penalties or lenience."""
        return isinstance(self._layer, PackedLayer) and self._may_branch(row)

    def _may_branch(self, row: SequenceState) -> bool:
        return self._branches and may_branch(row)

    def _tree_for(self, row: SequenceState, gamma: int) -> Tree | None:
        """What a row is offered; None for a chain: where it is long, or the row's logits or acceptance are special."""
        if not (self._may_branch(row) and 0 < gamma <= LONGEST):
            return None
        free = row.request.gamma is None and not row.adaptive
        return _STEADY if free and gamma == self.profile.default_gamma == _STEADY.depth else tree_of(gamma)

    def _grow(self, rows: Sequence[SequenceState], gammas: Sequence[int], budgets: Sequence[Budget | None]) -> Draft:
        """Trees that grow step by step, as long as that pays."""
        layer = self._layer
        assert isinstance(layer, PackedLayer)
        asked = [Asked(*each) for each in zip(rows, gammas, budgets, strict=True)]
        return grow_on_kernels(asked, self._memory.take_unread(rows), layer, self._support)

    def _tree(self, rows: Sequence[SequenceState], tree: Tree) -> Draft:
        """The same tree for rows that are all greedy, or all not."""
        u = _uniforms(rows, len(tree))
        if self._static is not None:
            tokens, q = self._static.tree(rows, tree, u)
        else:
            settings, draws = self._settings(rows), to_device(u, self._device)
            levels = levels_of(tree, self._device)
            scores = self._memory.read(rows)
            tokens, q = self._steps.tree(tree, levels, scores, self._extend(rows, tree), settings, draws)
        buckets, count = list(offer(tree)[0]), len(rows)
        return Draft(tokens, [tree] * count, q, self._support, None, [buckets] * count)

    def _chain(self, rows: Sequence[SequenceState], gammas: Sequence[int]) -> Draft:
        """One token for each position, `max(gammas)` draft steps for all rows; q is kept unless every row is greedy."""
        steps, u, adjustment = max(gammas), _uniforms(rows, max(gammas)), self._penalties.of(rows)
        if self._static is not None and adjustment is None:
            tokens, q = self._static.chain(rows, steps, u)
        else:
            settings, draws = self._settings(rows), to_device(u, self._device)
            scores = self._memory.read(rows)
            tokens, q = self._steps.chain(steps, scores, self._extend(rows, chain(steps)), settings, draws, adjustment)
        chains = [chain(gamma) for gamma in gammas]
        return Draft(tokens, chains, q, buckets=[list(offer(each)[0]) for each in chains])

    def _settings(self, rows: Sequence[SequenceState]) -> SamplingRows:
        return SamplingRows.of([row.request.sampling for row in rows], self._device)

    def _extend(self, rows: Sequence[SequenceState], tree: Tree) -> Extend:
        """Continue after drafted tokens of the rows."""
        levels = levels_of(tree, self._device)
        return lambda depth, tokens: self._layer.extend(rows, tree, tree.levels[depth], levels[depth].parents, tokens)


def _uniforms(rows: Sequence[SequenceState], count: int) -> NDArray[np.float64]:
    """[B, count], float64, for this round's draws."""
    return uniforms([row.seed for row in rows], [row.rounds for row in rows], Stream.DRAFT, count)


def build(context: BuildContext, name: str) -> HeadDrafter:  # noqa: ARG001
    """The drafter for an engine."""
    loaded, target = context.parts["head"], context.target
    return HeadDrafter(loaded.head, loaded.vocabulary, target, branches=target.capabilities.trees)
