"""Head drafter: drafts with a small network on the target's hidden states (`engine.drafters.head`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specchat.engine.backends.kernel_drafting import KernelDrafting
from specchat.engine.backends.packed import PackedBackend
from specchat.engine.cache.block_pool import BlockPool, BlockStore
from specchat.engine.cache.prefix_tree import BLOCK
from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.draft import Draft, RowOrder, Support, draft_by_kind
from specchat.engine.decoding.drafter import LATER_RATE, Drafter, DrafterProfile, NetworkRecipe, Recipe, RowProfile
from specchat.engine.decoding.tree import BRANCHES, LONGEST, Tree, chain, tree_of
from specchat.engine.decoding.tree_growth import EXPECTED, GRADES
from specchat.engine.drafters.build_context import BuildContext
from specchat.engine.drafters.head.folder import LoadedHead
from specchat.engine.drafters.head.layer import HeadLayer, LayeredHead, codes_of, target_output
from specchat.engine.drafters.head.network import DraftHead
from specchat.engine.drafters.head.packed_layer import PackedLayer, can_be_packed
from specchat.engine.drafters.head.steps import MOST_SHAPES, HeadSteps
from specchat.engine.drafters.head.torch_layer import TorchLayer
from specchat.engine.kernels.packed_matrix import QuantizedLinear
from specchat.engine.sequence.sequence import SequenceState

_BUCKETS = range(2 * BRANCHES)
"""Buckets of trees of fixed shape: first choice to last for the first position, then for any later one."""


class _Kind(NamedTuple):
    """What rows have in common that are drafted for at once."""

    name: str
    tree: Tree | None = None
    draws: bool = False


@dataclass(slots=True)
class _Slot:
    first: int = 0
    read: int = 0
    """The places from `first` up to `read` have been read."""
    stored: int = 0
    """Leading tokens whose states are in the slot's blocks."""


class _ReadPlaces(BlockStore):
    """Places of blocks that have been read; the layer has the memory of their keys and values.

    Args:
        pool: of the blocks.
    """

    column_bytes = 0

    def __init__(self, pool: BlockPool) -> None:
        super().__init__(pool)
        self.allocate(pool.blocks)

    def allocate(self, blocks: int) -> None:
        """Have memory for this number of blocks."""
        self._next = np.full(blocks, -1)
        """Token that the last place of each block was read with."""
        self.memory = [torch.from_numpy(self._next)]  # of a block, not of its columns

    def copy(self, source: int, target: int, count: int) -> None:
        """The first places of a block have been copied; if more have been read, the text differs after them."""
        self._next[target] = self._next[source] if self.valid[source] <= count else -1

    def note(self, slot: int, first: int, end: int, tokens: Sequence[int]) -> None:
        """Places of a text in a slot have been read, from the beginning of a block on."""
        self.mark(slot, first, end)
        for start in range(first, end, BLOCK):
            block, stop = self.pool.tables[slot, start // BLOCK], min(start + BLOCK, end)
            if self.valid[block] == stop - start:
                self._next[block] = tokens[stop]

    def read(self, slot: int, first: int, length: int, tokens: Sequence[int]) -> int:
        """Up to which place a text in a slot has been read from `first`, the beginning of a block, on."""
        end = self.attach(slot, length, first)
        for start in range(first, end, BLOCK):
            block, stop = self.pool.tables[slot, start // BLOCK], min(start + BLOCK, end)
            if stop - start == self.valid[block] and self._next[block] != tokens[stop]:
                return stop - 1
        return end


class HeadMemory:
    """Places of every slot that the head has read.

    Place i stands for token i + 1 with the state that the target had at token i. The head has one layer, so a place's
    key and value depend on nothing but these two: places may be read in any order, and again. They stay with the blocks
    of a text.

    Args:
        layer: keeps states, keys and values.
        slots: as many as the target's cache has.
    """

    def __init__(self, layer: HeadLayer, slots: int) -> None:
        self._layer, self._places = layer, _ReadPlaces(layer.pool)
        self._slots = [_Slot() for _ in range(slots)]

    def admit(self, row: SequenceState) -> int:
        """Take a row in; how many of its tokens' states are known."""
        known = self._layer.attach(row.slot, row.cached)
        first = self._looks_back_to(known)
        self._slots[row.slot] = _Slot(first, self._places.read(row.slot, first, known, row.tokens), known)
        return known

    def absorb(
        self, rows: Sequence[SequenceState], tapped: Tensor | Sequence[Tensor], lengths: Sequence[int] | None = None
    ) -> None:
        """Keep the states of the tokens that the target has just read from `row.cached` on.

        Args:
            rows: B.
            tapped: the target's hidden states [B, T, taps x d], or of each row its own.
            lengths: how many of each row's T tokens are wanted, from the first on; all if not given.
        """
        self._layer.absorb([row.slot for row in rows], [row.cached for row in rows], tapped, lengths)
        for row, count in zip(rows, lengths or (), strict=False):
            slot, end = self._slots[row.slot], row.cached + count
            if not row.prefilled and end > slot.stored:
                self._layer.mark(row.slot, slot.stored, end)
                slot.stored = end

    def release(self, row: SequenceState) -> None:
        """The row leaves; states and places of its text stay known."""
        self._layer.flush()
        slot = self._slots[row.slot]
        self._layer.mark(row.slot, min(slot.first, slot.stored), max(row.cached, slot.stored))
        # Of rounds that were run together, some may have come after the reply's end.
        self._places.note(row.slot, slot.first, min(slot.read, len(row.tokens) - 1), row.tokens)

    def take_unread(self, rows: Sequence[SequenceState]) -> list[int]:
        """The first place that each row has to read; afterwards its places count as read."""
        begins = []
        for row in rows:
            slot, end = self._slots[row.slot], len(row.tokens) - 1
            least = self._looks_back_to(end)
            if not slot.first <= least <= slot.read:
                slot.first = slot.read = least
            begins.append(max(slot.read, end - self._layer.most_unread))
            slot.read = end
        return begins

    def has_read(self, row: SequenceState, end: int) -> None:
        """A row has been read up to this place."""
        self._slots[row.slot].read = end

    def _looks_back_to(self, end: int) -> int:
        """The first place that has to be read for a draft at `end`; the beginning of a block."""
        least = max(end - self._layer.window, 0)
        return least - least % BLOCK


class HeadDrafter(Drafter):
    """A head next to its target, with a memory in every slot.

    Every draft step is one pass of the head for all rows; tokens and distributions stay on the device. Drafts are trees
    of a fixed shape (`engine.decoding.tree`): rows offer the likeliest tokens, or draw them without replacement
    (`SequenceState.draws`). On the quantised kernels, where every verified token costs, trees grow, and drawn ones are
    chains. The head scores a part of the vocabulary only. Outside of it q is 0, which acceptance takes as it is
    (Leviathan et al. 2023, Appendix A.1 asks nothing of q but that the draft was drawn from it).

    Args:
        loaded: the head, and the V' tokens that it can draft.
        target: whose hidden states it reads; its taps are the head's. Where it verifies no trees drafts are chains.
    """

    name = "head"

    def __init__(self, loaded: LoadedHead, target: Backend) -> None:
        head, vocabulary = loaded.head, loaded.vocabulary
        self._branches = target.capabilities.trees
        self._device = target.device
        own = head.layer_of if isinstance(head, LayeredHead) else partial(_layer_of, head)
        self._layer, self.score_bytes = own(vocabulary, target)
        self._packed = self._layer if isinstance(self._layer, PackedLayer) else None
        self._support = Support.of(vocabulary, target.vocabulary)
        self.supports = (self._support,) if self._branches else ()
        self._memory = HeadMemory(self._layer, target.cache.slots)
        self._graphs = target.graphs(MOST_SHAPES)
        self._steps = HeadSteps(self._layer, self._support, self._graphs)
        later = {bucket: LATER_RATE for bucket in _BUCKETS if bucket % BRANCHES}
        self.profile = DrafterProfile(_BUCKETS, later)
        if self._packed:
            self.profile = DrafterProfile(range(2 * GRADES), expected_rates=EXPECTED)
            if self._branches and isinstance(target, PackedBackend):
                self.recipe = recipe_of(self._packed, self._support, self._memory)
                self._drafting = cache(partial(KernelDrafting, self.recipe, target.penalties_of_rows))

    @property
    def cache_bytes(self) -> int:  # type: ignore[override]
        """Memory beyond the head's weights."""
        return self._layer.bytes + self.score_bytes

    @property
    def graph_bytes(self) -> int:  # type: ignore[override]
        """Memory that its CUDA graphs share."""
        return self._graphs.bytes

    def warm_up(self) -> float | None:
        """Plan to capture all shapes of trees and chains; time a step of a packed head."""
        if self._graphs.enabled:
            longest = min(LONGEST, self._layer.deepest) if self._branches else 0
            self._steps.plan([tree_of(gamma) for gamma in range(1, longest + 1)])
        return self._packed.time_step() if self._packed else None

    def admit(self, row: SequenceState) -> RowProfile:
        """Find the hidden states of the prompt that are known."""
        known = self._memory.admit(row)
        if self._grows(row):
            return RowProfile(grows=True, known_states=known)

        def shapes(gamma: int) -> tuple[Sequence[int], Tree]:
            length = min(gamma, self._layer.deepest)
            tree = self._tree_for(row, length) or chain(length)
            return _ranks(tree), tree

        return RowProfile(shapes, known_states=known)

    def on_hidden_states(
        self, rows: Sequence[SequenceState], states: Tensor | Sequence[Tensor], lengths: Sequence[int] | None = None
    ) -> None:
        """Keep the states of what the target has read."""
        self._memory.absorb(rows, states, lengths)

    def release(self, row: SequenceState) -> None:
        """Leave the slot's memory to the next turn."""
        self._memory.release(row)

    def propose(self, orders: Sequence[RowOrder]) -> list[Draft]:
        """Trees of γ positions; chains where they are long, or where a row's tokens are not drawn plainly."""
        return draft_by_kind(orders, self._kind, self._draft)

    def _kind(self, order: RowOrder) -> _Kind:
        """What rows have to share to be drafted for at once."""
        row = order.row
        if len(row.tokens) < 2:  # nothing has been read yet
            return _Kind("nothing")
        if self._grows(row):
            return _Kind("growing")
        tree = self._tree_for(row, min(order.gamma, self._layer.deepest))
        return _Kind("tree", tree, row.draws) if tree else _Kind("chain")

    def _draft(self, kind: _Kind, orders: Sequence[RowOrder]) -> list[Draft]:
        """The drafts of rows that are alike: trees that grow, the same tree, or else chains."""
        if kind.name == "nothing":
            return [Draft()] * len(orders)
        if kind.name == "growing":
            return self._drafting(len(orders)).grow(orders)
        rows = [order.row for order in orders]
        trees = [kind.tree or chain(min(order.gamma, self._layer.deepest)) for order in orders]
        longest, begins = max(trees, key=len), self._memory.take_unread(rows)
        tokens, q = self._steps.draft(rows, begins, longest, branches=kind.tree is not None)
        return [
            Draft(
                tokens[i, : len(tree)],
                tree,
                q[i, : tree.inner] if q is not None and order.row.draws else None,
                self._support,
                _ranks(tree),
                order.gamma,
            )
            for i, (order, tree) in enumerate(zip(orders, trees, strict=True))
        ]

    def _grows(self, row: SequenceState) -> bool:
        """Whether its tree grows: not with lenience."""
        return self.recipe is not None and row.request.sampling.lossless

    def _tree_for(self, row: SequenceState, gamma: int) -> Tree | None:
        """The tree to draft for a row; None for a chain: if γ is large, or the row's acceptance allows no branches."""
        branches = self._branches and row.request.sampling.lossless and 0 < gamma <= LONGEST
        return tree_of(gamma) if branches else None


@lru_cache
def _ranks(tree: Tree) -> Sequence[int]:
    """Buckets: a token's rank among those offered for its position, apart for the first position."""
    ranks = [tree.children[parent].index(child) for child, parent in enumerate(tree.parents, 1)]
    return [rank + BRANCHES * (tree.depths[i] > 1) for i, rank in enumerate(ranks, 1)]


def recipe_of(layer: PackedLayer, support: Support, memory: HeadMemory) -> Recipe:
    """What the kernels need to grow the trees of a head."""
    return Recipe(
        network=NetworkRecipe(
            HeadDrafter.name,
            layer.drafter,
            first=1,
            deepest=min(layer.deepest, LONGEST),
            support=support,
            take_unread=memory.take_unread,
            has_read=memory.has_read,
            width=layer.tapped_width,
            take_states=layer.unread.take,
        )
    )


def _layer_of(head: DraftHead, vocabulary: Tensor, target: Backend) -> tuple[HeadLayer, int]:
    """The layer of a head of ours, on the quantised kernels where they fit, else in torch (`LayeredHead.layer_of`)."""
    pool = target.cache.pool
    scores, size = target_output(target, vocabulary, codes_of(head.fuse))
    if isinstance(target, PackedBackend) and isinstance(scores, QuantizedLinear) and can_be_packed(head):
        return PackedLayer(head, scores.matrix, target.packed_embedding, pool), size
    return TorchLayer(head, scores, target.embedding_rows, pool), size


def build(context: BuildContext, name: str) -> HeadDrafter:  # noqa: ARG001
    """The drafter for an engine."""
    return HeadDrafter(context.parts["head"], context.target)
