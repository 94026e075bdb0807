"""Suffix drafter: continues the longest suffix of the text that occurred before, as it most often continued.

After SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975, section 4), with an automaton instead of their tree. Its
match may be of any length, where the n-gram drafter's ends at three tokens. Where texts of other chats have a longer
one, it continues theirs. A draft is certain (one-hot q).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

from specchat.engine.decoding.drafter import DrafterProfile
from specchat.engine.decoding.proposal import Draft, Source
from specchat.engine.drafters.datastore import GRADES, Datastore
from specchat.engine.drafters.registry import BuildContext
from specchat.engine.drafters.text_drafter import Pairs, TextDrafter
from specchat.engine.request import MAX_GAMMA
from specchat.engine.sequence.sequence import SequenceState

_ROOT = 0
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


class SuffixAutomaton:
    """All substrings of a growing text, with the counts that a longest-match predictor needs.

    Construction: Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text", amortised constant
    time a token. A state stands for the substrings that end at the same places; its link is the longest suffix of them
    that ends elsewhere too. So the link of the whole text's state is the longest suffix that occurred before: what is
    matched.

    Counts follow PPM's update exclusion (Moffat 1990, section 3.1): a token is counted after the longest context that
    it has followed before, and after the longer ones in which it is new. These are just the states that construction
    visits.

    Some 600 bytes a token: at most two states, 1.4 in text.
    """

    def __init__(self) -> None:
        self._length = [0]
        """Per state: tokens of its longest substring."""
        self._link = [-1]
        self._next: list[dict[int, int]] = [{}]
        self._counts: list[dict[int, int]] = [{}]
        """Per state: how often a token followed, where that was more than once."""
        self._best = [-1]
        """Per state: the token that followed most often, the latest of several."""
        self._last = _ROOT
        self.tokens = 0
        """Tokens of the text."""

    @property
    def matched(self) -> tuple[int, int]:
        """State and length of the longest suffix that occurred before; the root and 0 if none."""
        state = max(self._link[self._last], _ROOT)
        return state, self._length[state]

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text."""
        for token in tokens:
            self._append(token)

    def step(self, state: int, length: int, token: int) -> tuple[int, int]:
        """State and length of the longest match after a token that follows a match."""
        following = self._next
        while state != _ROOT and token not in following[state]:
            state = self._link[state]
            length = self._length[state]
        found = following[state].get(token)
        return (_ROOT, 0) if found is None else (found, length + 1)

    def likeliest(self, state: int) -> tuple[int, float] | None:
        """The token that followed a state most often, and its share of all that did; None if none did."""
        token = self._best[state]
        if token < 0:
            return None
        following = self._next[state]
        if len(following) == 1:
            return token, 1.0
        counts = self._counts[state]
        return token, counts.get(token, 1) / sum(counts.get(each, 1) for each in following)

    def shorter(self, state: int) -> tuple[int, int]:
        """State and length of the longest suffix of a match that ends at other places too."""
        state = max(self._link[state], _ROOT)
        return state, self._length[state]

    def predict(self, behind: Iterable[int] = ()) -> Iterator[tuple[int, int]]:
        """The tokens that are likely after the text and `behind`, each with its bucket."""
        state, length = self.matched
        for token in behind:
            state, length = self.step(state, length, token)
        while length:
            found = self.likeliest(state)
            if found is None:  # the end of the text: it repeats itself
                state, length = self.shorter(state)
                continue
            token, share = found
            yield token, 0 if share <= _CONTESTED else 1 + sum(length >= least for least in _LENGTHS)
            state, length = self.step(state, length, token)

    def _append(self, token: int) -> None:
        length, link, following, best = self._length, self._link, self._next, self._best
        new = self._add(length[self._last] + 1, {}, {}, -1)
        state = self._last
        while state >= 0 and token not in following[state]:
            following[state][token] = new
            if not self._counts[state]:  # else the best one has followed more than once
                best[state] = token
            state = link[state]
        if state < 0:
            link[new] = _ROOT
        else:
            self._count(state, token)
            link[new] = self._suffix(state, token)
        self._last = new
        self.tokens += 1

    def _count(self, state: int, token: int) -> None:
        """The token has followed the state once more."""
        counts = self._counts[state]
        count = counts[token] = counts.get(token, 1) + 1
        if count >= counts.get(self._best[state], 1):
            self._best[state] = token

    def _suffix(self, state: int, token: int) -> int:
        """The state that a new one, which ends in the longest substring of `state` and the token, links to."""
        length, link, following = self._length, self._link, self._next
        found = following[state][token]
        if length[found] == length[state] + 1:
            return found
        copy = self._add(length[state] + 1, dict(following[found]), dict(self._counts[found]), self._best[found])
        link[copy] = link[found]
        link[found] = copy
        while state >= 0 and following[state].get(token) == found:
            following[state][token] = copy
            state = link[state]
        return copy

    def _add(self, length: int, following: dict[int, int], counts: dict[int, int], best: int) -> int:
        """A state without a link."""
        self._length.append(length)
        self._link.append(_ROOT)
        self._next.append(following)
        self._counts.append(counts)
        self._best.append(best)
        return len(self._length) - 1


class SuffixDrafter(TextDrafter[SuffixAutomaton]):
    """One automaton per row.

    Args:
        ends: tokens after which nothing is drafted: the reply would be over.
        never: tokens that are not drafted: turn marks of the chat template, which occur in prompts, not in replies.
        datastore: texts of other chats.
    """

    name = "suffix"
    profile = DrafterProfile(buckets=tuple(range(_STORED)), expected_rates=_EXPECTED)
    """Buckets: 0 if other continuations are as frequent; else by the length of the match; then those of other chats."""
    predictor = SuffixAutomaton
    chunk = 4096
    """Some 15 ms."""

    def __init__(
        self, ends: Collection[int] = (), never: Collection[int] = (), datastore: Datastore | None = None
    ) -> None:
        super().__init__(ends, never)
        self._datastore = datastore
        if datastore is not None:
            self.profile = replace(self.profile, buckets=range(_STORED + GRADES))
        self._stored: dict[str, tuple[int, Pairs]] = {}
        """Per request, what other chats continue with, and after how many tokens."""

    def propose(self, rows: Sequence[SequenceState], gammas: Sequence[int], *_: object, **__: object) -> Draft:
        """The continuation of each row's longest match."""
        drafts, sources = [], []
        for row, gamma in zip(rows, gammas, strict=True):
            stored = self._of_other_chats(row)
            drafts.append(self._draft(stored or self.text(row).predict(), gamma))
            sources.append((Source(OTHER_CHATS if stored else self.name),))
        tokens = [tokens for tokens, _ in drafts]
        return Draft.of_chains(tokens, [buckets for _, buckets in drafts], sources if self._datastore else None)

    def long_match(self, row: SequenceState) -> int | None:
        """Bucket of its draft's first token, if that continues a match that is nearly always right."""
        stored = self._of_other_chats(row)
        if not stored and self.text(row).matched[1] < _LENGTHS[SURE - 2]:
            return None
        buckets = self._draft(stored or self.text(row).predict(), 1)[1]
        return buckets[0] if buckets and buckets[0] >= SURE else None

    def continue_behind(self, row: SequenceState, tokens: Sequence[int], count: int) -> list[int]:
        """Up to `count` tokens that are likely after the row's text and these tokens, which need not come to stay."""
        likely = takewhile(lambda pair: pair[1] >= _LIKELY, self.text(row).predict(tokens))
        return self._draft(likely, count)[0]

    def release(self, row: SequenceState) -> None:
        """Drop the state of a row."""
        super().release(row)
        self._stored.pop(row.request.request_id, None)

    def _of_other_chats(self, row: SequenceState) -> Pairs:
        """Tokens and buckets of a match in other chats, where it is longer than that in the text."""
        # What other chats there are differs from run to run, and with it the width of passes.
        if not self._datastore or row.steady:
            return []
        name, length = row.request.request_id, len(row.tokens)
        known = self._stored.get(name)
        if known is None or known[0] != length:
            shared, without = self.text(row).matched[1], row.request.not_drafted_from
            found = self._datastore.continuation(row.tokens, MAX_GAMMA, shared, without)
            if found and found[0][0] in self._never:
                found = []
            known = self._stored[name] = length, [(token, _STORED + grade) for token, grade in found]
        return known[1]


def build(context: BuildContext, name: str) -> SuffixDrafter:  # noqa: ARG001
    """The drafter for an engine."""
    return SuffixDrafter(context.model.eos_ids, context.never, context.datastore)
