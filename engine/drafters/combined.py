"""Several drafters in order: each row and round has the draft of the first one that finds some worth verifying.

The text comes before the head, or block drafter: a long match costs nothing and is nearly always right; the head is
right more often than a short one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from specchat.engine.decoding.draft import Draft, RowOrder, Source
from specchat.engine.decoding.drafter import Drafter, DrafterProfile, RowProfile
from specchat.engine.drafters.build_context import BuildContext
from specchat.engine.drafters.suffix import RELIABLE, suffix_drafter
from specchat.engine.sequence.sequence import SequenceState


class CombinedDrafter(Drafter):
    """An order of drafters.

    Args:
        name: of the drafter.
        sources: in the order in which they are asked; the last one takes draft steps and decides about γ.
    """

    def __init__(self, name: str, sources: Sequence[Drafter]) -> None:
        self.name, self._sources, self._last = name, sources, sources[-1]
        self._firsts: dict[str, int] = {}
        """First bucket of each source among all buckets, by name; the buckets of the last source come first."""
        buckets, rates = list[int](), dict[int, float]()
        for source in reversed(sources):
            first = self._firsts[source.name] = len(buckets)
            buckets += [first + bucket for bucket in source.profile.buckets]
            rates |= {first + bucket: rate for bucket, rate in source.profile.expected_rates.items()}
        self.profile = DrafterProfile(buckets, rates, sorted(self._firsts.values()), free=True)
        recipe = self._last.recipe
        for source in sources[:-1]:
            recipe = recipe and source.recipe and recipe.joined(source.recipe, self._firsts[source.name])
        self.recipe = recipe and replace(recipe, names_sources=lambda: True)

    def warm_up(self) -> float | None:
        """Warm up the last source; returns the time of its draft step."""
        return self._last.warm_up()

    def admit(self, row: SequenceState) -> RowProfile:
        """Start a row with all of them."""
        about = self._last.admit(row)
        for source in self._sources[:-1]:
            source.admit(row)
        return about

    def unread(self, row: SequenceState) -> int:
        """Number of tokens of the text that are not read: a head reads a window of 256, with its first draft."""
        return self._sources[0].unread(row)

    def prefill(self, rows: Sequence[SequenceState]) -> None:
        """Read a chunk of text."""
        self._sources[0].prefill(rows)

    def on_hidden_states(
        self, rows: Sequence[SequenceState], states: Tensor | Sequence[Tensor], lengths: Sequence[int] | None = None
    ) -> None:
        """Pass the hidden states on."""
        for source in self._sources:
            source.on_hidden_states(rows, states, lengths)

    def propose(self, orders: Sequence[RowOrder]) -> list[Draft]:
        """The first draft for each row whose first token is worth its verification."""
        drafts, left = [Draft()] * len(orders), [*range(len(orders))]
        for source in self._sources:
            asked = [i for i in left if orders[i].gamma or source.profile.free]
            if not asked:
                continue
            first = self._firsts[source.name]
            for i, draft in zip(asked, source.propose([orders[i] for i in asked]), strict=True):
                found = replace(
                    draft,
                    buckets=[first + bucket for bucket in draft.buckets],
                    sources=draft.sources or (Source(source.name),),
                )
                if source is self._last or _is_worthwhile(found, orders[i]):
                    drafts[i] = found
                    left.remove(i)
        return drafts

    def release(self, row: SequenceState) -> None:
        """End a row with all of them."""
        for source in self._sources:
            source.release(row)


def _is_worthwhile(draft: Draft, order: RowOrder) -> bool:
    """Whether a draft has a first token that is worth its verification."""
    buckets, budget = draft.buckets, order.budget
    return bool(buckets) and (budget.repeatable or budget.rates[buckets[0]] > budget.passes[1])


def build(context: BuildContext, name: str) -> CombinedDrafter:
    """The drafter for an engine."""
    last: Drafter = context.drafters["head" if "head" in context.drafters else "block"]
    return CombinedDrafter(name, (suffix_drafter(context, least=RELIABLE, kernels=last.recipe is not None), last))
