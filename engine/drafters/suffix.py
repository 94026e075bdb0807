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
from itertools import islice, takewhile
from typing import Generic, Protocol, TypeVar

import numpy as np

from specchat.engine.decoding.draft import Draft, RowOrder, Source
from specchat.engine.decoding.drafter import Drafter, DrafterProfile, Recipe, RowProfile, TextRecipe
from specchat.engine.drafters.build_context import BuildContext
from specchat.engine.drafters.datastore import GRADES, Datastore
from specchat.engine.kernels.library import library, missing
from specchat.engine.kernels.round import TextMemory, TokenMark
from specchat.engine.request import MAX_GAMMA
from specchat.engine.sequence.sequence import SequenceState

Pairs = Iterable[tuple[int, int]]
"""Tokens and their buckets."""


class Predictor(Protocol):
    """Something that knows a text so far."""

    @property
    def tokens(self) -> int:
        """Number of tokens that it has read."""

    def extend(self, tokens: Iterable[int]) -> None:
        """Read the tokens that follow."""

    def predict(self) -> Iterator[tuple[int, int]]:
        """The tokens that are likely to follow, each with its bucket."""


Known = TypeVar("Known", bound=Predictor)


class TextDrafter(Drafter, Generic[Known]):
    """A drafter that knows nothing but the text. Drafts are certain (one-hot q).

    Args:
        ends: tokens after which nothing is drafted: the reply would be over.
        never: tokens that are not drafted: turn marks of the chat template, which occur in prompts, not in replies.
    """

    predictor: type[Known]
    chunk: int
    """Prompt tokens read between two rounds."""

    def __init__(self, ends: Collection[int] = (), never: Collection[int] = ()) -> None:
        self._ends, self._never = ends, never
        self._texts: dict[str, Known] = {}

    def text(self, row: SequenceState) -> Known:
        """The state of a row's text, which is read only now: many rounds do not ask for it."""
        text = self._texts[row.request.request_id]
        if text.tokens < len(row.tokens):
            text.extend(row.tokens[text.tokens :])
        return text

    def admit(self, row: SequenceState) -> RowProfile:
        """Read the beginning of the prompt."""
        self._texts[row.request.request_id] = self.predictor()
        self.prefill([row])
        return RowProfile()

    def unread(self, row: SequenceState) -> int:
        """Tokens that are not read; once the reply has begun, 0 up to a chunk, as a draft reads these first."""
        unread = len(row.tokens) - self._texts[row.request.request_id].tokens
        return unread if unread > (self.chunk if row.emitted else 0) else 0

    def prefill(self, rows: Sequence[SequenceState]) -> None:
        """Read the next `chunk` tokens of the first row."""
        row = rows[0]
        text = self._texts[row.request.request_id]
        text.extend(row.tokens[text.tokens : text.tokens + self.chunk])

    def propose(self, orders: Sequence[RowOrder]) -> list[Draft]:
        """Chains that the predictor of each row expects."""
        return [Draft.chain(*self._draft(self.text(order.row).predict(), order.gamma), order.gamma) for order in orders]

    def release(self, row: SequenceState) -> None:
        """Drop the state."""
        del self._texts[row.request.request_id]

    def _draft(self, pairs: Pairs, count: int) -> tuple[list[int], list[int]]:
        """Up to `count` tokens and their buckets: to the end of a reply, or to what does not occur in replies."""
        tokens: list[int] = []
        buckets: list[int] = []
        for token, bucket in islice(pairs, count):
            if token in self._never:
                break
            tokens.append(token)
            buckets.append(bucket)
            if token in self._ends:
                break
        return tokens, buckets


_LENGTHS = (2, 3, 5, 9)
"""Matches from each of these lengths on are in a bucket of their own."""
RELIABLE = 3
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
            grade = 1 + sum(length >= least for least in _LENGTHS)
            yield token, grade if often > _CONTESTED * len(places) else 0
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
        least: first bucket of matches that are continued; not 0 if another drafter drafts elsewhere.
    """

    name = "suffix"
    predictor = RepeatedText
    chunk = 1 << 20
    """Tokens that take about 60 ms."""

    def __init__(
        self,
        ends: Collection[int] = (),
        never: Collection[int] = (),
        datastore: Datastore | None = None,
        vocabulary: int | None = None,
        least: int = 0,
    ) -> None:
        super().__init__(ends, never)
        self._datastore, self._least = datastore, least
        by_kernels = vocabulary is not None
        # Buckets: 0 if other continuations are as frequent; else by length of match; then the grades of other chats.
        self.profile = DrafterProfile(
            range(_STORED if datastore is None else _STORED + GRADES),
            _EXPECTED,
            free=by_kernels or least > 0,
            stepless=by_kernels,
        )
        if vocabulary is not None:
            marks = array("B", bytes(vocabulary))
            for tokens, mark in ((ends, TokenMark.ENDS), (never, TokenMark.NEVER_DRAFTED)):
                for token in tokens:
                    if token < vocabulary:
                        marks[token] = mark
            text = TextRecipe(
                self.name,
                marks,
                first=0,
                least=least,
                memory=lambda row: self.text(row).memory,
                has_more=lambda row: bool(self.of_other_chats(row)),
            )
            self.recipe = Recipe(text, names_sources=lambda: bool(self._datastore))
        self._stored: dict[str, tuple[int, list[tuple[int, int]]]] = {}
        """Per request, what other chats continue with, and after how many tokens."""

    def admit(self, row: SequenceState) -> RowProfile:
        """Read the prompt."""
        return replace(super().admit(row), grows=self.recipe is not None)

    def propose(self, orders: Sequence[RowOrder]) -> list[Draft]:
        """The continuation of each row's longest match."""
        return [self._continuation(order) for order in orders]

    def _continuation(self, order: RowOrder) -> Draft:
        stored = self.of_other_chats(order.row)
        count = order.row.room if self.profile.free else order.gamma
        tokens, buckets = self._draft(stored or self.text(order.row).predict(), count)
        if buckets and buckets[0] < self._least:
            return Draft()
        sources = (Source(OTHER_CHATS if stored else self.name),) if self._datastore else ()
        return replace(Draft.chain(tokens, buckets, 0 if self.profile.free else order.gamma), sources=sources)

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


def suffix_drafter(context: BuildContext, least: int = 0, *, kernels: bool = True) -> SuffixDrafter:
    """A suffix drafter for an engine.

    Args:
        context: of the engine.
        least: as for `SuffixDrafter`.
        kernels: whether the kernels may draft from the texts where they can.
    """
    target = context.target
    vocabulary = target.vocabulary if kernels and target.capabilities.packed else None
    return SuffixDrafter(context.model.eos_ids, context.never, context.datastore, vocabulary, least)


def build(context: BuildContext, name: str) -> SuffixDrafter:  # noqa: ARG001
    """The drafter for an engine."""
    return suffix_drafter(context, kernels=context.target.capabilities.trees)
