"""Suffix automaton of a growing text, with the counts that a longest-match predictor needs.

Construction: Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text", amortised constant time
a token. A state stands for the substrings that end at the same places; its link is the longest suffix of them that ends
elsewhere too. So the link of the whole text's state is the longest suffix that occurred before: what is matched.

Counts follow PPM's update exclusion (Moffat 1990, section 3.1): a token is counted after the longest context that it
has followed before, and after the longer ones in which it is new. These are just the states that construction visits.

Some 600 bytes a token: at most two states, 1.4 in text.
"""

from __future__ import annotations

from collections.abc import Iterable

_ROOT = 0


class SuffixAutomaton:
    """All substrings of the tokens so far."""

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
