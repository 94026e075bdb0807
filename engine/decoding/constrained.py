"""Drafts of constrained rows: what the constraint allows of a drafter's draft, and the text that has to follow it.

After any token a grammar may force text, such as the next key after `"Paris",`. Its tokens take no draft step, so drafts
of all drafters are extended by them, where they are worth their verification.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, repeat

from torch import Tensor

from specchat.engine.decoding.draft import Budget, Draft, RowOrder, Source, Support
from specchat.engine.decoding.drafter import Drafter, DrafterProfile, RowProfile
from specchat.engine.decoding.tree import Tree, tree_from
from specchat.engine.device.device import to_device
from specchat.engine.request import MAX_GAMMA
from specchat.engine.sequence.sequence import SequenceState

GRAMMAR = "grammar"
"""Name of drafts of text that has to follow."""
_RATES = 0.95, 0.8
"""Prior acceptance rates of their tokens, which the model may write otherwise: certain and open ones (`Forced`)."""
_UNKNOWN_RATE = 0.5
"""Acceptance rate of a token of a drafter that states none."""


class ConstrainedDrafter(Drafter):
    """A drafter for rows with a constraint. Where text has to follow the row's own, no draft step is taken.

    Args:
        drafter: of the rows.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.name, self._drafter, about = f"{GRAMMAR}+{drafter.name}", drafter, drafter.profile
        buckets = about.buckets or (0,)
        self._forced = max(buckets) + 1, max(buckets) + 2
        """Buckets of certain and of open tokens."""
        self.profile = DrafterProfile(
            (*buckets, *self._forced),
            {**about.expected_rates, **dict(zip(self._forced, _RATES, strict=True))},
            (*about.methods, self._forced[0]),
            free=True,
            stepless=about.stepless,
        )

    def admit(self, row: SequenceState) -> RowProfile:
        """Start a row."""
        return self._drafter.admit(row)

    def unread(self, row: SequenceState) -> int:
        """Number of tokens that the drafter has to read."""
        return self._drafter.unread(row)

    def prefill(self, rows: Sequence[SequenceState]) -> None:
        """Read a chunk of text."""
        self._drafter.prefill(rows)

    def on_hidden_states(
        self, rows: Sequence[SequenceState], states: Tensor | Sequence[Tensor], lengths: Sequence[int] | None = None
    ) -> None:
        """Pass the hidden states on."""
        self._drafter.on_hidden_states(rows, states, lengths)

    def on_accepted(self, row: SequenceState, emitted: Sequence[int]) -> None:
        """Pass the accepted tokens on."""
        self._drafter.on_accepted(row, emitted)

    def propose(self, orders: Sequence[RowOrder]) -> list[Draft]:
        """What has to follow where that is known, else what the drafter proposes and what has to follow that."""
        drafts = [self._extended(Draft(), order) for order in orders]
        free = self._drafter.profile.free
        left = [i for i, order in enumerate(orders) if not drafts[i].tokens and (order.gamma or free)]
        for i, draft in zip(left, self._drafter.propose([orders[i] for i in left]) if left else (), strict=True):
            drafts[i] = self._extended(draft, orders[i])
        return drafts

    def release(self, row: SequenceState) -> None:
        """End a row."""
        self._drafter.release(row)

    def _extended(self, draft: Draft, order: RowOrder) -> Draft:
        """A draft without forbidden tokens, and with forced ones where they are worth their verification."""
        row, tree, drafted = order.row, draft.tree, draft.on_host
        assert row.constraint
        if tree.tests is not None:
            return draft
        follows = row.constraint.follow(row.tokens, drafted, tree.children)
        kept = sorted(follows.keys() - {0})
        grown, places = _Growing(), {0: 0}
        for node in kept:
            bucket = draft.buckets[node - 1] if draft.buckets else 0
            places[node] = grown.add(places[tree.parents[node - 1]], drafted[node - 1], bucket)
        drawn = draft.q is not None
        parents = {tree.parents[node - 1] for node in kept}
        for node, (certain, open_) in follows.items():
            if drawn and node in parents:  # a sibling would have to be drawn too
                continue
            tokens = [*zip(certain, repeat(self._forced[0])), *zip(open_, repeat(self._forced[1]))]
            grown.force(places[node], _known(tokens, draft.support) if drawn else tokens)
        least = len(kept) if drawn or order.budget.required else 0
        chosen = grown.best(order.budget, least, row.room if order.free else order.gamma)
        if chosen == [*range(len(tree))]:
            return draft
        nodes = {0: 0, **{i + 1: node for node, i in enumerate(chosen, 1)}}
        tokens, buckets = [grown.tokens[i] for i in chosen], [grown.buckets[i] for i in chosen]
        made = tree_from(tuple(nodes[grown.parents[i]] for i in chosen))
        q = None if draft.q is None else _q_of(draft.q, [0, *kept], made, tokens, draft.support)
        own = [source.name for source in draft.sources] or [self._drafter.name]
        names = own * any(bucket < self._forced[0] for bucket in buckets) + [GRAMMAR] * (
            max(buckets, default=0) >= self._forced[0]
        )
        return replace(
            draft, tokens=tokens, tree=made, q=q, buckets=buckets, sources=(Source("+".join(names)),) if names else ()
        )


class _Growing:
    """A tree of drafted tokens that forced ones are added to."""

    def __init__(self) -> None:
        self.tokens, self.parents, self.buckets = list[int](), list[int](), list[int]()
        self._children: dict[tuple[int, int], int] = {}
        """Nodes by parent and token."""

    def add(self, parent: int, token: int, bucket: int) -> int:
        """Add a token; returns its node."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.buckets.append(bucket)
        self._children.setdefault((parent, token), len(self.tokens))
        return len(self.tokens)

    def force(self, node: int, tokens: Iterable[tuple[int, int]]) -> None:
        """Add tokens, with their buckets, that have to follow a node; where they are known they get these buckets."""
        for token, bucket in tokens:
            node = self._children.get((node, token)) or self.add(node, token, bucket)
            self.buckets[node - 1] = bucket

    def best(self, budget: Budget, least: int, depth: int) -> list[int]:
        """Indices of the tokens that are worth their verification, up to a depth; the first `least` are in any case."""
        chances, depths = [1.0], [0]
        for parent, bucket in zip(self.parents, self.buckets, strict=True):
            repeats = parent and self.buckets[parent - 1] == bucket
            rates = (budget.repeat_rates or budget.rates) if repeats else budget.rates
            chances.append(chances[parent] * rates.get(bucket, _UNKNOWN_RATE))
            depths.append(depths[parent] + 1)
        others = [i for i in range(least, len(self.tokens)) if depths[i + 1] <= depth]
        others = sorted(others, key=lambda i: -chances[i + 1])[: MAX_GAMMA - least]
        worth = [0.0]
        for count, gained in enumerate(accumulate(chances[i + 1] for i in others), least + 1):
            worth.append(gained - (budget.passes[count] - budget.passes[least]))
        return [*range(least), *sorted(others[: worth.index(max(worth))])]


def _known(tokens: Sequence[tuple[int, int]], support: Support | None) -> Sequence[tuple[int, int]]:
    """The first of these tokens with buckets, up to one that is not in a support."""
    if support is None or not tokens:
        return tokens
    ids = to_device([token for token, _ in tokens], support.tokens.device)
    known = (support.tokens[support.places[ids]] == ids).tolist()
    return tokens[: [*known, False].index(False)]


def _q_of(q: Tensor, kept: Sequence[int], tree: Tree, tokens: Sequence[int], support: Support | None) -> Tensor:
    """q of a drawn draft that forced tokens were added to: what a node is followed by for certain is one-hot.

    Args:
        q: of the draft.
        kept: its nodes that are the first ones of the tree.
        tree: of all tokens.
        tokens: [K]
        support: of q.
    """
    made = q.new_zeros(tree.inner, q.shape[1])
    drawn = [(node, source) for node, source in enumerate(kept) if source < len(q) and node < tree.inner]
    made[[node for node, _ in drawn]] = q[[source for _, source in drawn]]
    for token, parent in zip(tokens[len(kept) - 1 :], tree.parents[len(kept) - 1 :], strict=True):
        made[parent] = 0.0
        made[parent, token if support is None else support.places[token]] = 1.0
    return made
