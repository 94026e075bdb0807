"""DRY ("don't repeat yourself", p-e-w 2024, pull request 5677 of text-generation-webui; as in llama.cpp): a penalty on
tokens that would continue a repetition.

Before each token, every earlier place is looked at whose last tokens are the text's last tokens too. The token at that
place is penalised by the number n of equal tokens. The matches of a text give those of the text and one token more:
so each drafted token is judged after the drafted tokens before it, in a tree too, as in decoding one token at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from specchat.engine.request import Sampling
from specchat.engine.sequence.sequence import SequenceState

_LONGEST = 128
"""Most tokens of a match that are counted: with the usual base the penalty is infinite long before."""
_MOST = 1e6
"""Largest penalty. No token is left a chance, and its logit stays finite."""

Matches = dict[int, int]
"""By place, the number of tokens before it that equal the last tokens of a text."""


class Repetitions:
    """The repetitions of one row's text, which grows by its accepted tokens.

    Args:
        row: its text must not shrink.
    """

    def __init__(self, row: SequenceState) -> None:
        self.row = row
        self._places: defaultdict[int, list[int]] = defaultdict(list)
        """Of each token in the text."""
        self._breakers: dict[int, bool] = {}
        """Of tokens that were met, whether no repetition reaches across them."""
        self._matches: Matches = {}
        self._known = 0

    def penalties(self, drafted: Sequence[int], parents: Sequence[int]) -> list[dict[int, float]]:
        """Penalty by token, after the text and after each node of a tree.

        Args:
            drafted: K drafted tokens.
            parents: [K], the node before each; node 0 is the text's last token, node k the k-th drafted one.
        """
        self._catch_up()
        found: list[tuple[list[int], Matches]] = [([], self._matches)]
        for token, parent in zip(drafted, parents, strict=True):
            before, matches = found[parent]
            found.append(([*before, token], self._after(before, matches, token)))
        return [self._weighed(*each) for each in found]

    def _catch_up(self) -> None:
        """Read the tokens that were added to the text."""
        tokens = self.row.tokens
        if not self._known:
            for place, token in enumerate(tokens):
                self._places[token].append(place)
            self._matches = {place + 1: self._equal(place) for place in self._places[tokens[-1]][:-1]}
            self._matches = {place: count for place, count in self._matches.items() if count}
        else:
            for place in range(self._known, len(tokens)):
                self._matches = self._after((), self._matches, tokens[place])
                self._places[tokens[place]].append(place)
        self._known = len(tokens)

    def _equal(self, place: int) -> int:
        """Number of tokens up to this place that equal the last ones of the text."""
        tokens, last = self.row.tokens, len(self.row.tokens) - 1
        for count in range(min(place + 1, _LONGEST)):
            token = tokens[last - count]
            if tokens[place - count] != token or self._breaks(token):
                return count
        return min(place + 1, _LONGEST)

    def _after(self, before: Sequence[int], matches: Matches, token: int) -> Matches:
        """The matches after one more token, from those of the text and the drafted tokens `before` it."""
        if self._breaks(token):
            return {}
        length = len(self.row.tokens)
        places = [*self._places[token], *(length + i for i, other in enumerate(before) if other == token)]
        return {place + 1: min(matches.get(place, 0) + 1, _LONGEST) for place in places}

    def _breaks(self, token: int) -> bool:
        if token not in self._breakers:
            name, texts = self.row.text.name(token), self.row.request.sampling.dry_sequence_breakers
            self._breakers[token] = any(text in name for text in texts)
        return self._breakers[token]

    def _weighed(self, drafted: Sequence[int], matches: Matches) -> dict[int, float]:
        """Penalty by token: that of its longest match."""
        tokens, sampling = self.row.tokens, self.row.request.sampling
        last = sampling.dry_penalty_last_n
        first = max(len(tokens) + len(drafted) - last, 0) if last > 0 else 0
        longest: dict[int, int] = {}
        for place, count in matches.items():
            within = min(count, place - first)
            if within >= sampling.dry_allowed_length:
                token = tokens[place] if place < len(tokens) else drafted[place - len(tokens)]
                longest[token] = max(longest.get(token, 0), within)
        return {token: penalty(sampling, count) for token, count in longest.items()}


def penalty(sampling: Sampling, count: int) -> float:
    """Penalty of a token that would continue a repetition of so many tokens."""
    try:
        power = sampling.dry_base ** (count - sampling.dry_allowed_length)
    except OverflowError:
        return _MOST
    return min(sampling.dry_multiplier * power, _MOST)
