"""Drafts of constrained rows: what the constraint allows of a drafter's draft, and the text that has to follow it.

After any token a grammar may force text, such as the next key after `"Paris",`. Its tokens take no draft step, so that
drafts of all drafters are extended by them, where they are worth their verification.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from torch import Tensor

from specchat.engine.decoding.draft import Draft, RowOrder, Source, Support
from specchat.engine.decoding.drafter import Drafter, DrafterProfile, RowProfile
from specchat.engine.decoding.tree import Tree, tree_from
from specchat.engine.device.device import to_device
from specchat.engine.request import MAX_GAMMA
from specchat.engine.sequence.row_constraint import Forced, ForcedKind
from specchat.engine.sequence.sequence import SequenceState

GRAMMAR = "grammar"
"""Name of drafts of text that has to follow."""
_RATES = {ForcedKind.CERTAIN: 0.99, ForcedKind.OPEN: 0.8, ForcedKind.EITHER: 0.5, ForcedKind.ONE_OF_FEW: 0.3}
"""Prior acceptance rates of their tokens, which the model may write otherwise."""
_UNKNOWN_RATE = 0.5
"""Acceptance rate of a token of a drafter that states none."""


class ConstrainedDrafter(Drafter):
    """A drafter for rows with a constraint. Where text has to follow the row's own, no draft step is taken.

    Args:
        drafter: of the rows.
        branches: whether drafts may be trees.
    """

    def __init__(self, drafter: Drafter, *, branches: bool) -> None:
        self.name, self._drafter, about = f"{GRAMMAR}+{drafter.name}", drafter, drafter.profile
        self._branches = branches
        buckets = about.buckets or (0,)
        self._first = max(buckets) + 1
        """Bucket of certain tokens, before the buckets of the other kinds."""
        self._rates = {self._first + kind: rate for kind, rate in _RATES.items()}
        self.profile = DrafterProfile(
            (*buckets, *self._rates),
            {**about.expected_rates, **self._rates},
            (*about.methods, self._first),
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
        """What has to follow where that is certain, else what the drafter proposes and what has to follow that.

        No drafter continues after certain text: a head would need a step for each of its tokens, to have a state of the
        last one, and more drafts from the text did not save rounds.
        """
        drafts = [self._extended(Draft(), order) for order in orders]
        free = self._drafter.profile.free
        left = [i for i, order in enumerate(orders) if drafts[i].buckets[:1] != [self._first] and (order.gamma or free)]
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
        inner = {tree.parents[node - 1] for node in kept}
        # Next to a drawn token others would have to be drawn too.
        branches = self._branches and draft.q is None and row.request.sampling.lossless
        for node, forced in follows.items():
            if branches:
                grown.force(places[node], forced, self._first)
            elif node not in inner:
                alone = _chain(forced)
                grown.force(places[node], alone if draft.q is None else _known(alone, draft.support), self._first)
        budget = order.budget
        least = len(kept) if draft.q is not None or budget.repeatable else 0
        rates, again = (self._rates, {}) if budget.repeatable else (budget.rates, budget.repeat_rates)
        chances = grown.chances(rates, again or rates)
        chosen = grown.best(chances, budget.passes, least, row.room if order.free else order.gamma)
        same = len(kept) == len(tree) and chosen == [*range(len(tree))]
        return draft if same else self._made(grown, chosen, draft, [0, *kept])

    def _made(self, grown: _Growing, chosen: Sequence[int], draft: Draft, kept: Sequence[int]) -> Draft:
        """The draft of the chosen tokens; `kept` are the nodes of `draft` that `grown` began with."""
        nodes = {0: 0, **{i + 1: node for node, i in enumerate(chosen, 1)}}
        tokens, buckets = [grown.tokens[i] for i in chosen], [grown.buckets[i] for i in chosen]
        tree = tree_from(tuple(nodes[grown.parents[i]] for i in chosen))
        q = None if draft.q is None else _q_of(draft.q, kept, tree, tokens, draft.support)
        names = [source.name for source in draft.sources] or [self._drafter.name]
        if not buckets or min(buckets) >= self._first:
            names = []
        if buckets and max(buckets) >= self._first:
            names.append(GRAMMAR)
        sources = (Source("+".join(names)),) if names else ()
        return replace(draft, tokens=tokens, tree=tree, q=q, buckets=buckets, sources=sources)


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

    def force(self, node: int, forced: Iterable[Forced], first: int) -> None:
        """Add what has to follow a node, in buckets from `first` on; known tokens get these buckets."""
        nodes = [node]
        for parent, token, kind in forced:
            place = nodes[parent]
            nodes.append(self._children.get((place, token)) or self.add(place, token, first + kind))
            self.buckets[nodes[-1] - 1] = first + kind

    def chances(self, rates: Mapping[int, float], again: Mapping[int, float]) -> list[float]:
        """The probability that each token is accepted, by rates of buckets, `again` after tokens of the same one."""
        chances = [1.0]
        for parent, bucket in zip(self.parents, self.buckets, strict=True):
            repeats = parent and self.buckets[parent - 1] == bucket
            chances.append(chances[parent] * (again if repeats else rates).get(bucket, _UNKNOWN_RATE))
        return chances[1:]

    def best(self, chances: Sequence[float], prices: Sequence[float], least: int, depth: int) -> list[int]:
        """Indices of the tokens that are worth their verification, up to a depth; the first `least` are in any case.

        Args:
            chances: of the tokens.
            prices: of verifying 0, 1, … tokens.
            least: number of tokens that stay.
            depth: most positions.
        """
        depths = tree_from(tuple(self.parents)).depths
        others = [i for i in range(least, len(self.tokens)) if depths[i + 1] <= depth]
        others = sorted(others, key=lambda i: -chances[i])[: MAX_GAMMA - least]
        worth = [0.0]
        for count, gained in enumerate(accumulate(chances[i] for i in others), least + 1):
            worth.append(gained - (prices[count] - prices[least]))
        return [*range(least), *sorted(others[: worth.index(max(worth))])]


def _chain(forced: Sequence[Forced]) -> Sequence[Forced]:
    """The first tokens of a tree, up to the first that has a sibling."""
    parents = [each.parent for each in forced]
    alone = [parent == i and parents.count(parent) == 1 for i, parent in enumerate(parents)]
    return forced[: [*alone, False].index(False)]


def _known(forced: Sequence[Forced], support: Support | None) -> Sequence[Forced]:
    """The first of these tokens, up to one that is not in a support."""
    if support is None or not forced:
        return forced
    ids = to_device([each.token for each in forced], support.tokens.device)
    known = (support.tokens[support.places[ids]] == ids).tolist()
    return forced[: [*known, False].index(False)]


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
