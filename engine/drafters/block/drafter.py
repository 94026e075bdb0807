"""Block drafter: drafts whole blocks by one pass of a network on the target's hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specchat.engine.backends.packed import PackedBackend
from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.draft import Draft, RowOrder, Support, draft_by_kind
from specchat.engine.decoding.drafter import Drafter, DrafterProfile, RowProfile
from specchat.engine.decoding.tree import Tree, chain
from specchat.engine.decoding.tree_growth import EXPECTED, GRADES, NO_STEP, grow
from specchat.engine.decoding.tree_mask import TreePlace
from specchat.engine.drafters.block.packed import can_be_packed
from specchat.engine.drafters.block.packed_drafter import PackedBlockDrafter
from specchat.engine.drafters.block.reading import LoadedBlock
from specchat.engine.drafters.block.steps import BlockSteps, ContextCache
from specchat.engine.drafters.build_context import BuildContext
from specchat.engine.drafters.draft_model import scores_of
from specchat.engine.drafters.head.layer import codes_of, target_output
from specchat.engine.kernels.drafters import Scores
from specchat.engine.sequence.sequence import SequenceState

MOST_SHAPES = 128
"""Captured shapes that are kept."""


class BlockDrafter(Drafter):
    """A block drafter next to its target, with the keys and values of its context in every slot.

    A draft takes one step, whatever its length. On a CPU trees grow from its scores; on a GPU, where reading them would
    wait for the device and verifying costs little, drafts are chains whose positions alone decide how many are offered.

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
        codes = "q8" if codes_of(network.fc) else None
        output, self.score_bytes = target_output(target, vocabulary, codes)
        self._cache = ContextCache(network, target.cache.pool, network.norm.weight)
        self._graphs = target.graphs(MOST_SHAPES)
        self._network, self._branches = network, target.capabilities.trees
        self._known = vocabulary.tolist()
        known = None if whole else vocabulary
        self._steps = BlockSteps(network, self._cache, output, target.embedding_rows, known, self._graphs)
        self._penalties = target.penalties
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
        """Trees; chains on a GPU, for rows with lenience, and where the target verifies no trees."""
        if not self._grows:
            return self._chains(orders)
        return draft_by_kind(orders, lambda order: self._branches and order.row.request.sampling.lossless, self._trees)

    def _chains(self, orders: Sequence[RowOrder]) -> list[Draft]:
        tokens, q = self._steps.draft([order.row for order in orders])
        drafts = []
        for i, order in enumerate(orders):
            length = min(order.gamma, tokens.shape[1])
            own = q[i, :length] if q is not None and order.row.draws else None
            drafts.append(Draft(tokens[i, :length], chain(length), own, self._support, range(length), steps=1))
        return drafts

    @torch.inference_mode()
    def _trees(self, branches: bool, orders: Sequence[RowOrder]) -> list[Draft]:
        """Trees, or chains, that grow from the scores of one pass: a token's children come from its position's row."""
        rows = [order.row for order in orders]
        outcomes, scored = self._steps.score(rows)
        places, drafted = {row.slot: i for i, row in enumerate(rows)}, dict[tuple[int, int], int]()

        def after(which: list[int], paths: list[list[int]]) -> Scores:
            depth, network = len(paths[0]), self._network
            outcome = outcomes[which, depth]
            previous = torch.tensor([(path or rows[i].tokens)[-1] for i, path in zip(which, paths, strict=True)])
            logits = network.after(scored[which, depth], outcome, previous)
            scores = scores_of(self._adjusted([rows[i] for i in which], torch.tensor(paths).long(), logits))
            if (chance := network.confidence(outcome, previous)) is not None:
                scores.shares[:, 0] = chance.numpy()
            return scores if branches else Scores(scores.logits, scores.best[:, :1], scores.shares[:, :1])

        def expand(found: list[TreePlace], _: list[int]) -> Scores:
            drafted.update({(each.slot, each.column): each.token for each in found})
            paths = [[drafted[each.slot, column] for column in (*each.path, each.column)] for each in found]
            return after([places[each.slot] for each in found], paths)

        orders = [replace(order, budget=replace(order.budget, step=NO_STEP)) for order in orders]
        first = after([*range(len(rows))], [[]] * len(rows))
        drafts, _ = grow(orders, first, expand, self._known, scored.shape[1])
        return [replace(draft, support=self._support, steps=1) for draft in drafts]

    def _adjusted(self, rows: Sequence[SequenceState], drafted: Tensor, logits: Tensor) -> Tensor:
        """Logits [n, V'] with bias and penalties of n rows, after drafted tokens [n, depth]."""
        adjustment = self._penalties.of(rows, drafts=True)
        if adjustment is None:
            return logits
        whole = logits.new_zeros(len(logits), self._network.shape.vocabulary)
        whole[:, self._known] = logits
        return adjustment.apply(whole[:, None], drafted, first=drafted.shape[1])[:, 0, self._known]


def build(context: BuildContext, name: str) -> Drafter:  # noqa: ARG001
    """The drafter for an engine: on the packed kernels where target and network fit, else on tensors."""
    loaded, target = context.parts["block"], context.target
    if isinstance(target, PackedBackend) and can_be_packed(loaded.network):
        return PackedBlockDrafter(loaded, target)
    return BlockDrafter(loaded, target)
