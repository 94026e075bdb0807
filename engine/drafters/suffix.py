"""Suffix drafter: continues the longest suffix of the text that occurred before, as it most often continued.

After SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975, section 4), with an automaton instead of their tree. Its
match may be of any length, where the n-gram drafter's ends at three tokens. Where texts of other chats have a longer
one, it continues theirs. A draft is certain (one-hot q).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import takewhile

from specchat.engine.decoding.drafter import DrafterProfile
from specchat.engine.decoding.gamma.budget import Budget
from specchat.engine.decoding.proposal import Draft, Source
from specchat.engine.drafters.context import BuildContext
from specchat.engine.drafters.datastore import GRADES, Datastore
from specchat.engine.drafters.suffix_automaton import SuffixAutomaton
from specchat.engine.drafters.text_drafter import TextDrafter
from specchat.engine.request import MAX_GAMMA
from specchat.engine.sequence.sequence import SequenceState

_LENGTHS = (2, 3, 5, 9)
"""Matches from each of these lengths on are in a bucket of their own."""
SURE = 3
"""First bucket of matches that are nearly always right: of three tokens and more."""
_LIKELY = 2
"""First bucket of matches that are more often right than not: of two tokens and more."""
_STORED = len(_LENGTHS) + 2
"""First bucket of matches in other chats: the grades of the datastore, all of them nearly always right."""
_EXPECTED = {0: 0.15, 1: 0.25, 2: 0.4, 3: 0.55, 4: 0.7, 5: 0.85, 6: 0.65, 7: 0.85, 8: 0.95}
"""Acceptance rates per bucket in chats with the default model."""
OTHER_CHATS = "other chats"
"""What a draft from them is called."""
_CONTESTED = 0.5
"""Share at which the most frequent continuation is no surer than all others."""


class SuffixDrafter(TextDrafter[SuffixAutomaton]):
    """One automaton per row.

    Args:
        ends: tokens after which nothing is drafted: the reply would be over.
        never: tokens that are not drafted: turn marks of the chat template, which occur in prompts, not in replies.
        datastore: texts of other chats.
    """

    name = "suffix"
    profile = DrafterProfile(buckets=tuple(range(_STORED + GRADES)), expected_rates=_EXPECTED)
    """Buckets: 0 if other continuations are as frequent; else by the length of the match; then those of other chats."""
    chunk = 4096
    """Some 15 ms."""

    def __init__(
        self, ends: Collection[int] = (), never: Collection[int] = (), datastore: Datastore | None = None
    ) -> None:
        super().__init__(SuffixAutomaton)
        self._ends = ends
        self._never = never
        self._datastore = datastore
        self._stored: dict[str, tuple[int, list[tuple[int, int]]]] = {}
        """Per request, what other chats continue with, and after how many tokens."""

    def propose(
        self,
        rows: Sequence[SequenceState],
        gammas: Sequence[int],
        budgets: Sequence[Budget | None] = (),  # noqa: ARG002
    ) -> Draft:
        """The continuation of each row's longest match."""
        drafts, sources = [], []
        for row, gamma in zip(rows, gammas, strict=True):
            if stored := self._of_other_chats(row):
                drafts.append(([token for token, _ in stored[:gamma]], [bucket for _, bucket in stored[:gamma]]))
            else:
                drafts.append(self._continuation(self.text(row), gamma))
            sources.append((Source(OTHER_CHATS if stored else self.name),))
        tokens = [tokens for tokens, _ in drafts]
        return Draft.of_chains(tokens, [buckets for _, buckets in drafts], sources if self._datastore else None)

    def has_long_match(self, row: SequenceState) -> bool:
        """Whether its draft starts with a match that is nearly always right."""
        if self._of_other_chats(row):
            return True
        text = self.text(row)
        if text.matched[1] < _LENGTHS[SURE - 2]:
            return False
        buckets = self._continuation(text, 1)[1]
        return bool(buckets) and buckets[0] >= SURE

    def continue_behind(self, row: SequenceState, tokens: Sequence[int], count: int) -> list[int]:
        """Up to `count` tokens that are likely after the row's text and these tokens, which need not come to stay."""
        found, buckets = self._continuation(self.text(row), count, tokens)
        return [token for token, _ in takewhile(lambda pair: pair[1] >= _LIKELY, zip(found, buckets, strict=True))]

    def release(self, row: SequenceState) -> None:
        """Drop the state of a row."""
        super().release(row)
        self._stored.pop(row.request.request_id, None)

    def _of_other_chats(self, row: SequenceState) -> list[tuple[int, int]]:
        """Tokens and buckets of a match in other chats, where it is longer than that in the text."""
        # What other chats there are differs from run to run, and a reply that has to repeat must not depend on it.
        if not self._datastore or row.repeatable:
            return []
        name, length = row.request.request_id, len(row.tokens)
        known = self._stored.get(name)
        if known is None or known[0] != length:
            found = self._datastore.continuation(row.tokens, MAX_GAMMA, self.text(row).matched[1])
            known = self._stored[name] = length, self._as_draft(found)
        return known[1]

    def _as_draft(self, found: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Tokens and buckets up to the end of a reply, or to what does not occur in replies."""
        kept = takewhile(lambda pair: pair[0] not in self._never, found)
        draft = [(token, _STORED + grade) for token, grade in kept]
        ends = [place for place, (token, _) in enumerate(draft) if token in self._ends]
        return draft[: ends[0] + 1] if ends else draft

    def _continuation(
        self, text: SuffixAutomaton, count: int, behind: Sequence[int] = ()
    ) -> tuple[list[int], list[int]]:
        """Up to `count` tokens after the text and `behind`, and the bucket of each."""
        state, length = text.matched
        for token in behind:
            state, length = text.step(state, length, token)
        tokens: list[int] = []
        buckets: list[int] = []
        while len(tokens) < count and length:
            found = text.likeliest(state)
            if found is None:  # the end of the text: it repeats itself
                state, length = text.shorter(state)
                continue
            token, share = found
            if token in self._never:
                break
            tokens.append(token)
            buckets.append(0 if share <= _CONTESTED else 1 + sum(length >= least for least in _LENGTHS))
            if token in self._ends:
                break
            state, length = text.step(state, length, token)
        return tokens, buckets


def build(context: BuildContext, name: str) -> SuffixDrafter:  # noqa: ARG001
    """The drafter for an engine."""
    return SuffixDrafter(context.model.eos_ids, context.never, context.datastore)
