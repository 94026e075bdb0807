"""Suffix drafter: continues the longest suffix of the text that occurred before, as it most often went on.

After SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975, section 4), with an automaton in place of their tree. Its
match may be of any length, where the n-gram drafter's ends at three tokens. A draft is certain (one-hot q).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.speculation.drafters.base import Drafter
from specchat.engine.speculation.drafters.suffix_automaton import SuffixAutomaton
from specchat.engine.speculation.gamma.budget import Budget
from specchat.engine.speculation.proposal import Draft

SEEDED = 4096
"""Tokens of a prompt that are read at once: some 15 ms."""
_LENGTHS = (2, 3, 5, 9)
"""Matches from each of these lengths on are in a bucket of their own."""
SURE = 3
"""First bucket of matches that are nearly always right: of three tokens and more."""
_CONTESTED = 0.5
"""Share at which the most frequent continuation is no surer than all others."""


class SuffixDrafter(Drafter):
    """One automaton per row.

    Args:
        ends: tokens behind which nothing is drafted: the reply would be over.
        never: tokens that are not drafted: turn marks of the chat template, which stand in prompts, not in replies.
    """

    name = "suffix"
    buckets = tuple(range(len(_LENGTHS) + 2))
    """0 where other continuations are as frequent; else by the length of the match."""

    def __init__(self, ends: Collection[int] = (), never: Collection[int] = ()) -> None:
        self._ends = ends
        self._never = never
        self._texts: dict[str, SuffixAutomaton] = {}

    def admit(self, row: SequenceState) -> None:
        """Read the beginning of the prompt."""
        self._texts[row.request.request_id] = SuffixAutomaton()
        self.read([row])

    def unread(self, row: SequenceState) -> int:
        """What the automaton has not read yet."""
        return len(row.tokens) - self._texts[row.request.request_id].tokens

    def read(self, rows: Sequence[SequenceState]) -> None:
        """Read `SEEDED` tokens more of the first."""
        row = rows[0]
        text = self._texts[row.request.request_id]
        text.extend(row.tokens[text.tokens : text.tokens + SEEDED])

    def propose(
        self,
        rows: Sequence[SequenceState],
        gammas: Sequence[int],
        budgets: Sequence[Budget | None] = (),  # noqa: ARG002
    ) -> Draft:
        """The continuation of each row's longest match."""
        drafts = [
            self._continuation(self._texts[row.request.request_id], gamma)
            for row, gamma in zip(rows, gammas, strict=True)
        ]
        tokens = [tokens for tokens, _ in drafts]
        return Draft(tokens, [len(each) for each in tokens], buckets=[buckets for _, buckets in drafts])

    def observe(self, row: SequenceState, emitted: Sequence[int]) -> None:
        """Read the new tokens."""
        self._texts[row.request.request_id].extend(emitted)

    def release(self, row: SequenceState) -> None:
        """Drop the row's automaton."""
        del self._texts[row.request.request_id]

    def _continuation(self, text: SuffixAutomaton, count: int) -> tuple[list[int], list[int]]:
        """Up to `count` tokens, and the bucket of each."""
        state, length = text.matched
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
