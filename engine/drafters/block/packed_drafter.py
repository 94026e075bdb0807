"""Block drafter whose network and draft the kernels run, next to a target that runs on them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from torch import Tensor

from specchat.engine.backends.kernel_drafting import KernelDrafting
from specchat.engine.backends.packed import PackedBackend
from specchat.engine.decoding.draft import Draft, RowOrder, Support, draft_by_kind
from specchat.engine.decoding.drafter import Drafter, DrafterProfile, Recipe, RowProfile
from specchat.engine.decoding.tree import BRANCHES
from specchat.engine.decoding.tree_growth import EXPECTED, GRADES
from specchat.engine.drafters.block.packed import PackedContext, short_copy
from specchat.engine.drafters.block.reading import LoadedBlock
from specchat.engine.drafters.head.layer import target_output
from specchat.engine.kernels.packed_matrix import PackedMatrix
from specchat.engine.sequence.sequence import SequenceState


class PackedBlockDrafter(Drafter):
    """A block drafter with packed weights: trees, or chains where the target verifies no trees or a row takes none.

    Args:
        loaded: the network, which the kernels can run (`can_be_packed`), and the V' tokens that it scores.
        target: whose hidden states it reads; its taps are the drafter's.
    """

    name = "block"
    profile = DrafterProfile(range(2 * GRADES), expected_rates=EXPECTED)

    def __init__(self, loaded: LoadedBlock, target: PackedBackend) -> None:
        network, vocabulary = loaded.network, loaded.vocabulary
        scores, self.score_bytes = target_output(target, vocabulary, "q8")
        whole = len(vocabulary) == target.vocabulary
        support = None if whole else Support.of(vocabulary, target.vocabulary)
        assert isinstance(scores.matrix, PackedMatrix)
        if copy := short_copy(scores.matrix):
            self.score_bytes += copy.data.nbytes
        self._context = PackedContext(network, scores.matrix, target.packed_embedding, target.cache.pool, copy)
        trees, chains = (
            Recipe(network=self._context.recipe(self.name, support, branches)) for branches in (BRANCHES, 1)
        )
        self.recipe = trees if target.capabilities.trees else chains
        self._chains = chains
        self._drafting = cache(lambda recipe, count: KernelDrafting(recipe, target.penalties_of_rows, count))
        self._stored = [0] * target.cache.slots
        """Leading tokens, by slot, whose keys and values are in its blocks."""

    @property
    def cache_bytes(self) -> int:  # type: ignore[override]
        """Memory beyond the weights."""
        return self._context.bytes + self.score_bytes

    def admit(self, row: SequenceState) -> RowProfile:
        """Find the tokens of the prompt whose keys and values are known."""
        known = self._stored[row.slot] = self._context.attach(row.slot, row.cached)
        return RowProfile(grows=True, known_states=known)

    def on_hidden_states(
        self, rows: Sequence[SequenceState], states: Tensor | Sequence[Tensor], lengths: Sequence[int] | None = None
    ) -> None:
        """Keep what the target has read; it is read when it is needed."""
        self._context.unread.absorb([row.slot for row in rows], [row.cached for row in rows], states, lengths)
        for row, count in zip(rows, lengths or (), strict=False):
            if not row.prefilled:
                self._store(row.slot, row.cached + count)

    def release(self, row: SequenceState) -> None:
        """Leave what was read to the next turn."""
        self._context.unread.flush()
        self._store(row.slot, row.cached)

    def _store(self, slot: int, end: int) -> None:
        """The blocks of a slot have its first `end` tokens."""
        if end > self._stored[slot]:
            self._context.mark(slot, self._stored[slot], end)
            self._stored[slot] = end

    def propose(self, orders: Sequence[RowOrder]) -> list[Draft]:
        """Drafts of up to γ positions; chains for rows with lenience."""
        return draft_by_kind(orders, lambda order: order.row.request.sampling.lossless, self._draft)

    def _draft(self, lossless: bool, orders: Sequence[RowOrder]) -> Sequence[Draft]:
        recipe = self.recipe if lossless else self._chains
        return self._drafting(recipe, len(orders)).grow(orders)
