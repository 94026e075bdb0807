"""Block drafter: drafts whole blocks by one pass of a network on the target's hidden states."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specchat.engine.backends.packed import PackedBackend
from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.draft import Budget, Draft, RowOrder, Support
from specchat.engine.decoding.drafter import Drafter, DrafterProfile, RowProfile
from specchat.engine.decoding.tree import Tree, chain
from specchat.engine.decoding.tree_growth import EDGES, EXPECTED, GRADES, LEAST
from specchat.engine.drafters.block.packed import can_be_packed
from specchat.engine.drafters.block.packed_drafter import PackedBlockDrafter
from specchat.engine.drafters.block.reading import LoadedBlock
from specchat.engine.drafters.block.steps import BlockSteps, ContextCache
from specchat.engine.drafters.build_context import BuildContext
from specchat.engine.drafters.head.layer import target_output
from specchat.engine.sequence.sequence import SequenceState

MOST_SHAPES = 128
"""Captured shapes that are kept."""


class BlockDrafter(Drafter):
    """A block drafter next to its target, with the keys and values of its context in every slot.

    A draft takes one step, whatever its length. On a CPU the probability of each position decides how many are offered;
    on a GPU, where reading it would wait for the device and verifying costs little, the position alone does.

    Args:
        loaded: the network, and the V' tokens that it scores.
        target: whose hidden states it reads; its taps are the drafter's.
    """

    name = "block"

    def __init__(self, loaded: LoadedBlock, target: Backend) -> None:
        network, vocabulary = loaded.network, loaded.vocabulary
        shape = network.shape
        whole = len(vocabulary) == target.vocabulary
        self._support = None if whole else Support.of(vocabulary, target.vocabulary)
        output, self.score_bytes = target_output(target, vocabulary, network.fc)
        self._cache = ContextCache(network, target.cache.pool, network.norm.weight)
        self._graphs = target.graphs(MOST_SHAPES)
        known = None if whole else vocabulary
        self._steps = BlockSteps(
            network, self._cache, output, target.embedding_rows, known, self._graphs, target.penalties
        )
        self._proposals, self._grows = shape.proposals, target.device.type == "cpu"
        self.profile = DrafterProfile(range(shape.proposals))
        if self._grows:
            self.profile = DrafterProfile(range(2 * GRADES), expected_rates=EXPECTED)
        self._stored = [0] * target.cache.slots
        """Leading tokens, by slot, whose keys and values are in its blocks."""

    @property
    def cache_bytes(self) -> int:  # type: ignore[override]
        """Memory beyond the weights."""
        return self._cache.bytes + self.score_bytes

    @property
    def graph_bytes(self) -> int:  # type: ignore[override]
        """Memory that its CUDA graphs share."""
        return self._graphs.bytes

    def warm_up(self) -> None:
        """Plan to capture both steps."""
        if self._graphs.enabled:
            self._steps.plan()

    def admit(self, row: SequenceState) -> RowProfile:
        """Find the tokens of the prompt whose keys and values are known."""
        known = self._stored[row.slot] = self._cache.attach(row.slot, row.cached)
        if self._grows:
            return RowProfile(grows=True, known_states=known)

        def shapes(gamma: int) -> tuple[Sequence[int], Tree]:
            length = min(gamma, self._proposals)
            return range(length), chain(length)

        return RowProfile(shapes, one_step=True, known_states=known)

    def on_hidden_states(
        self, rows: Sequence[SequenceState], states: Tensor | Sequence[Tensor], lengths: Sequence[int] | None = None
    ) -> None:
        """Read what the target has read."""
        if not isinstance(states, Tensor):
            lengths = lengths or [len(each) for each in states]
            states = pad_sequence(list(states), batch_first=True)
        lengths = lengths or [states.shape[1]] * len(rows)
        self._steps.read([row.slot for row in rows], [row.cached for row in rows], states, lengths)
        for row, count in zip(rows, lengths, strict=True):
            if not row.prefilled:
                self._store(row.slot, row.cached + count)

    def release(self, row: SequenceState) -> None:
        """Leave what was read to the next turn."""
        self._store(row.slot, row.cached)

    def _store(self, slot: int, end: int) -> None:
        """Keep the first `end` tokens of a slot in its blocks."""
        if end > self._stored[slot]:
            self._cache.mark(slot, self._stored[slot], end)
            self._stored[slot] = end

    def propose(self, orders: Sequence[RowOrder]) -> list[Draft]:
        """Chains of up to γ positions."""
        drafted = self._steps.draft([order.row for order in orders])
        chances = drafted.chances.tolist() if self._grows else None
        drafts = []
        for i, order in enumerate(orders):
            length, buckets = min(order.gamma, drafted.tokens.shape[1]), list(range(self._proposals))
            if chances:
                first = GRADES if order.row.draws else 0
                buckets = [first + bisect_right(EDGES, chance) for chance in chances[i][:length]]
                length = worthwhile(buckets, order.budget)
            q = drafted.q[i, :length] if drafted.q is not None and order.row.draws else None
            drafts.append(Draft(drafted.tokens[i, :length], chain(length), q, self._support, buckets[:length], steps=1))
        return drafts


def worthwhile(buckets: Sequence[int], budget: Budget) -> int:
    """Number of positions of a chain to offer: as long as a token's chance exceeds the price of verifying it.

    Whether a position is offered depends on none of the draws from that position on, so that drawn drafts stay exact.

    Args:
        buckets: of the positions.
        budget: prices and rates.
    """
    chance, passes = 1.0, budget.passes
    for i, bucket in enumerate(buckets):
        repeats = i > 0 and bucket == buckets[i - 1]
        chance *= (budget.repeat_rates or budget.rates)[bucket] if repeats else budget.rates[bucket]
        # Where passes are padded, a token more costs much or nothing: what counts is the best of longer drafts.
        price = min((passes[end] - passes[i]) / (end - i) for end in range(i + 1, len(buckets) + 1))
        if i >= budget.required and chance <= max(price, LEAST):
            return i
    return len(buckets)


def build(context: BuildContext, name: str) -> Drafter:  # noqa: ARG001
    """The drafter for an engine: on the packed kernels where target and network fit, else on tensors."""
    loaded, target = context.parts["block"], context.target
    if isinstance(target, PackedBackend) and can_be_packed(loaded.network):
        return PackedBlockDrafter(loaded, target)
    return BlockDrafter(loaded, target)
