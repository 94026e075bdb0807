"""Suffix drafter: continues the longest suffix of the text that occurred before, as it most often continued.

After SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975, section 4), with a search of the text instead of their tree,
which keeps no state. A match may have many tokens, where the n-gram drafter's ends at three. Where texts of other chats
have a longer one, it continues theirs. A draft is certain (one-hot q).

The kernels search in microseconds (`text_match.h`), for targets on the kernels at the beginning of their round. Without
the kernels NumPy does the same, more slowly.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from ctypes import c_int64
from dataclasses import replace
from functools import cache
from itertools import islice, takewhile

import numpy as np
import torch

from specchat.engine.decoding.drafter import Budgets, DrafterProfile, RowProfile
from specchat.engine.decoding.proposal import Draft, Source
from specchat.engine.drafters.build_context import BuildContext
from specchat.engine.drafters.datastore import GRADES, Datastore
from specchat.engine.drafters.kernel_growth import RULES, KernelGrowth, TextRules, fill
from specchat.engine.drafters.text_drafter import TextDrafter
from specchat.engine.drafters.tree_growth import Asked, repeatable
from specchat.engine.kernels.growing_trees import GrowingTrees, Mark
from specchat.engine.kernels.library import library, missing
from specchat.engine.kernels.text_memory import TextMemory
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
"""Name of drafts from them in records."""
_COMPARED, _LONGEST, _OCCURRENCES = 1024, 32, 64
"""The latest occurrences of the last token that are compared; most tokens of a match; matches whose continuations are
counted."""
_CONTESTED = 0.5
"""Share at which the most frequent continuation is no surer than all others."""


class RepeatedText:
    """A growing text, and what followed earlier occurrences of its end."""

    def __init__(self) -> None:
        self.memory = TextMemory()

    @property
    def tokens(self) -> int:
        """Tokens of the text."""
        return self.memory.count

    @property
    def matched(self) -> int:
        """Tokens of the longest suffix that occurred before, `_LONGEST` at most."""
        return self._search((), 0)[0] if missing() is None else self._longest_match(())[0]

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text."""
        self.memory.append([*tokens])

    def predict(self, behind: Iterable[int] = ()) -> Iterator[tuple[int, int]]:
        """Up to `MAX_GAMMA` tokens that are likely after the text and `behind`, each with its bucket."""
        if missing() is not None:
            yield from islice(self._predict_slowly([*behind]), MAX_GAMMA)
            return
        found = self._search([*behind], MAX_GAMMA)
        for token, bucket in zip(found[1 : MAX_GAMMA + 1], found[MAX_GAMMA + 1 :], strict=True):
            if token < 0:
                break
            yield token, bucket

    def _search(self, behind: Sequence[int], most: int) -> list[int]:
        """`sk_continue_text` of the text and `behind`, which takes the room after the text for the moment."""
        if not self.tokens:
            return [0, *[-1] * (2 * most)]
        found = (c_int64 * (1 + 2 * most))()
        count = self.tokens + len(behind)
        self.memory.ids[self.tokens : count] = array("q", behind)
        library().c.sk_continue_text(self.memory.address, count, most, found)
        return found[:]

    def _predict_slowly(self, added: list[int]) -> Iterator[tuple[int, int]]:
        """Without the kernels, the tokens that are likely after the text and those added, each with its bucket."""
        length, places = self._longest_match(added)

        def at(place: int) -> int:
            return self.memory.ids[place] if place < self.tokens else added[place - self.tokens]

        while places:
            following = Counter(map(at, places))  # the latest ones first, as `most_common` keeps the first of equals
            token, often = following.most_common(1)[0]
            sure = 1 + sum(length >= least for least in _LENGTHS)
            yield token, sure if often > _CONTESTED * len(places) else 0
            added.append(token)
            places, length = [place + 1 for place in places if at(place) == token], length + 1

    def _longest_match(self, behind: Sequence[int]) -> tuple[int, list[int]]:
        """Tokens of the longest suffix that occurred before, and the places after its occurrences, the latest first."""
        if not self.tokens:
            return 0, []
        text = np.frombuffer(self.memory.ids, dtype=np.int64, count=self.tokens)
        if behind:
            text = np.concatenate([text, behind])
        places = np.flatnonzero(text[:-1] == text[-1:])[-_COMPARED:] + 1
        if not len(places):
            return 0, []
        back = np.arange(min(_LONGEST, len(text) - 1))
        before = places[:, None] - 1 - back
        same = (before >= 0) & (text[before] == text[-1 - back])
        lengths = np.logical_and.accumulate(same, axis=1).sum(axis=1)
        longest = lengths.max()
        return int(longest), places[lengths == longest][: -_OCCURRENCES - 1 : -1].tolist()


class SuffixDrafter(TextDrafter[RepeatedText]):
    """One text per row.

    Args:
        ends: tokens after which nothing is drafted: the reply would be over.
        never: tokens that are not drafted: turn marks of the chat template, which occur in prompts, not in replies.
        datastore: texts of other chats.
        vocabulary: V, if the kernels verify and draft from the texts themselves.
    """

    name = "suffix"
    profile = DrafterProfile(buckets=tuple(range(_STORED)), expected_rates=_EXPECTED)
    """Buckets: 0 if other continuations are as frequent; else by the length of the match; then those of other chats."""
    predictor = RepeatedText
    chunk = 1 << 20
    """Some 60 ms."""

    def __init__(
        self,
        ends: Collection[int] = (),
        never: Collection[int] = (),
        datastore: Datastore | None = None,
        vocabulary: int | None = None,
    ) -> None:
        super().__init__(ends, never)
        self._datastore = datastore
        if datastore is not None:
            self.profile = replace(self.profile, buckets=range(_STORED + GRADES))
        self.rules: TextRules | None = None
        """For the kernels, if they draft from the texts."""
        if vocabulary is not None:
            marks = array("B", bytes(vocabulary))
            for tokens, mark in ((ends, Mark.ENDS), (never, Mark.NEVER_DRAFTED)):
                for token in tokens:
                    if token < vocabulary:
                        marks[token] = mark
            self.rules = TextRules(marks, 0, 0)
            self.profile = replace(self.profile, proposes_at_zero=True)
        self._trees = cache(lambda count: GrowingTrees(None, count, None, RULES, vocabulary or 0))
        """Memory of the kernels, by number of rows."""
        self._stored: dict[str, tuple[int, list[tuple[int, int]]]] = {}
        """Per request, what other chats continue with, and after how many tokens."""

    def admit(self, row: SequenceState) -> RowProfile:
        """Read the prompt."""
        return replace(super().admit(row), grows=self.rules is not None, free=self.rules is not None)

    def propose(self, rows: Sequence[SequenceState], gammas: Sequence[int], budgets: Budgets = ()) -> Draft:
        """The continuation of each row's longest match."""
        if self.rules and not any(map(self.of_other_chats, rows)):
            names = (self.name, "") if self._datastore else None
            return self.grow(rows, gammas, budgets, self.rules._replace(names=names))
        return self.continuations(rows, [row.room for row in rows] if self.rules else gammas)

    def grow(self, rows: Sequence[SequenceState], gammas: Sequence[int], budgets: Budgets, rules: TextRules) -> Draft:
        """Continuations that the kernels find at the beginning of their round.

        Args:
            rows: B.
            gammas: [B]; of a row without a budget, tokens that are drafted whatever they cost.
            budgets: [B], or empty.
            rules: of such drafts.
        """
        count = len(rows)
        trees, kept = self._trees(count), []
        for growth, row, gamma, budget in zip(trees.rows, rows, gammas, budgets or [None] * count, strict=True):
            asked = Asked(row, gamma, budget or repeatable(gamma), self.text(row).memory)
            kept.append(fill(growth, asked, rules))
        trees.fill(kept, torch.get_num_threads(), texts=(rules.marks, rules.first))
        return Draft.deferred(KernelGrowth(trees, [False] * count, rules=rules), count)

    def continuations(self, rows: Sequence[SequenceState], counts: Sequence[int]) -> Draft:
        """Up to `counts[i]` tokens that continue each row's longest match."""
        drafts, sources = [], []
        for row, count in zip(rows, counts, strict=True):
            stored = self.of_other_chats(row)
            drafts.append(self._draft(stored or self.text(row).predict(), count))
            sources.append((Source(OTHER_CHATS if stored else self.name),))
        tokens = [tokens for tokens, _ in drafts]
        return Draft.of_chains(tokens, [buckets for _, buckets in drafts], sources if self._datastore else None)

    def long_match(self, row: SequenceState) -> int | None:
        """Bucket of its draft's first token, if that continues a match that is nearly always right."""
        buckets = self._draft(self.of_other_chats(row) or self.text(row).predict(), 1)[1]
        return buckets[0] if buckets and buckets[0] >= SURE else None

    def continue_behind(self, row: SequenceState, tokens: Sequence[int], count: int) -> list[int]:
        """Up to `count` tokens that are likely after the row's text and these tokens, which need not come to stay."""
        likely = takewhile(lambda pair: pair[1] >= _LIKELY, self.text(row).predict(tokens))
        return self._draft(likely, count)[0]

    def release(self, row: SequenceState) -> None:
        """Drop the state of a row."""
        super().release(row)
        self._stored.pop(row.request.request_id, None)

    def of_other_chats(self, row: SequenceState) -> list[tuple[int, int]]:
        """Tokens and buckets of a match in other chats, where it is longer than that in the text."""
        # What other chats there are differs from run to run, and with it the width of passes.
        if not self._datastore or row.steady:
            return []
        name, length = row.request.request_id, len(row.tokens)
        known = self._stored.get(name)
        if known is None or known[0] != length:
            shared, without = self.text(row).matched, row.request.not_drafted_from
            found = self._datastore.continuation(row.tokens, MAX_GAMMA, shared, without)
            if found and found[0][0] in self._never:
                found = []
            known = self._stored[name] = length, [(token, _STORED + grade) for token, grade in found]
        return known[1]


def build(context: BuildContext, name: str) -> SuffixDrafter:  # noqa: ARG001
    """The drafter for an engine."""
    target = context.target
    by_kernels = target.capabilities.packed and target.capabilities.trees
    vocabulary = target.vocabulary if by_kernels else None
    return SuffixDrafter(context.model.eos_ids, context.never, context.datastore, vocabulary)
