"""Draft-model drafter whose drafts are token trees of fixed shape, for a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from specchat.engine.decoding.drafter import Drafter, DrafterProfile, RowProfile
from specchat.engine.decoding.gamma.budget import Budget
from specchat.engine.decoding.proposal import Draft, Support, join
from specchat.engine.decoding.tree import LONGEST, Tree, chain, tree_of
from specchat.engine.drafters.context import BuildContext
from specchat.engine.drafters.draft_cache import DraftCache
from specchat.engine.drafters.draft_model import TREES, ModelDrafter, chains_of, members, whole_support
from specchat.engine.drafters.fixed_trees import BUCKETS, LATER, may_branch, offer
from specchat.engine.drafters.static_trees import LEAD, StaticTrees
from specchat.engine.sequence.sequence import SequenceState


class FixedTreeDrafter(Drafter):
    """A draft model that drafts trees of fixed shape (`engine.decoding.tree`); chains, where they are long, or where a
    row's logits or its acceptance are special.

    Greedy rows offer the likeliest tokens, the others draw them without replacement. There, tokens cost little and
    what the host does not know need not be waited for.

    Args:
        cache: what the draft model's cache holds of every row.
        trees: drafts trees.
        chains: drafts chains.
        support: the tokens that trees are drawn from, all V of them.
        device: of the draft model.
        branches: whether to offer several tokens for a position; else drafts are chains.
    """

    name = TREES
    profile = DrafterProfile(BUCKETS, LATER)

    def __init__(
        self,
        cache: DraftCache,
        trees: StaticTrees,
        chains: ModelDrafter,
        support: Support,
        device: torch.device,
        *,
        branches: bool = True,
    ) -> None:
        self._cache = cache
        self._trees = trees
        self._chains = chains
        self.support = support
        self._device = device
        self._branches = branches
        self._branched: set[str] = set()
        """Requests whose trees are under judgement."""

    @property
    def graph_bytes(self) -> int:  # type: ignore[override]
        """Memory of distributions."""
        return self._trees.bytes

    def warm_up(self) -> None:
        """Capture trees of all numbers of rows and columns."""
        if self._branches:
            self._trees.capture()

    def admit(self, row: SequenceState) -> RowProfile:
        """Note how much of the prompt the slot still holds from an earlier turn."""
        self._chains.admit(row)
        return RowProfile(lambda gamma: offer(self._tree_for(row, gamma) or chain(gamma)))

    def prefill(self, rows: Sequence[SequenceState]) -> None:
        """Feed one chunk."""
        self._chains.prefill(rows)

    def propose(
        self,
        rows: Sequence[SequenceState],
        gammas: Sequence[int],
        budgets: Sequence[Budget | None] = (),  # noqa: ARG002
    ) -> Draft:
        """Trees of `gammas[i]` positions, and chains."""
        alike: dict[tuple[Tree | None, bool], list[int]] = {}
        for i, (row, gamma) in enumerate(zip(rows, gammas, strict=True)):
            tree = self._tree_for(row, gamma)
            alike.setdefault((tree, tree is not None and row.request.sampling.greedy), []).append(i)
        parts: list[tuple[list[int], Draft]] = []
        for (tree, _), mine in alike.items():
            some, lengths = [rows[i] for i in mine], [gammas[i] for i in mine]
            if tree is None:
                draft = replace(
                    self._chains.propose(some, lengths), buckets=[list(offer(chain(each))[0]) for each in lengths]
                )
            else:
                draft = self._of_shape(some, tree, shared=len(alike) == 1)
            parts.append((mine, draft))
        return parts[0][1] if len(parts) == 1 else join(parts, len(rows), self._device)

    def on_accepted(self, row: SequenceState, emitted: Sequence[int]) -> None:
        """What was accepted of a tree is fed again."""
        if row.request.request_id not in self._branched:
            self._chains.on_accepted(row, emitted)
            return
        self._branched.remove(row.request.request_id)
        self._cache.keep(row, len(row.tokens) - len(emitted))

    def release(self, row: SequenceState) -> None:
        """Leave the slot's content to the next turn."""
        self._branched.discard(row.request.request_id)
        self._chains.release(row)

    def _of_shape(self, rows: Sequence[SequenceState], tree: Tree, *, shared: bool) -> Draft:
        """The same tree for rows that are all greedy, or all not; in its own memory unless it may be shared."""
        self._cache.catch_up(rows, LEAD)
        tokens, q = self._trees.draft(rows, tree)
        if not shared:
            tokens, q = tokens.clone(), None if q is None else q.clone()
        self._branched |= {row.request.request_id for row in rows}
        buckets, count = list(offer(tree)[0]), len(rows)
        return Draft(tokens, [len(tree)] * count, None, [buckets] * count, [tree] * count, q, self.support)

    def _tree_for(self, row: SequenceState, gamma: int) -> Tree | None:
        """What a row is offered; None for a chain."""
        return tree_of(gamma) if self._branches and may_branch(row) and 0 < gamma <= LONGEST else None


def build(context: BuildContext, name: str) -> FixedTreeDrafter:  # noqa: ARG001
    """The drafter for an engine whose draft model has CUDA graphs."""
    first, target = members(context)[0], context.target
    assert first.model.graph_runner is not None
    trees = StaticTrees(first.model.graph_runner, first.steps.fit, target.vocabulary)
    support = whole_support(context)
    return FixedTreeDrafter(
        first.cache, trees, chains_of(context), support, first.model.device, branches=target.branches
    )
