"""Rounds in a row, with a number for each token that was drafted or emitted in them."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from specchat.engine import Round, Token


class NumberedRounds:
    """The rounds of one reply. Tokens are numbered from 0 through all of them, drafted ones before the last one."""

    def __init__(self) -> None:
        self.rounds: list[Round] = []
        self.starts: list[int] = []
        """Of each round: the number of its first token."""
        self.tokens = 0
        """How many tokens were drafted or emitted."""

    def append(self, record: Round) -> None:
        """Add a round behind the others."""
        self.rounds.append(record)
        self.starts.append(self.tokens)
        self.tokens += len(record.drafted) + (record.last is not None)

    def round_of(self, token: int) -> int:
        """The index of the round with this token."""
        return bisect_right(self.starts, token) - 1

    def token(self, number: int) -> tuple[Round, Token]:
        """A token by its number, and its round.

        Raises:
            IndexError: there is no such token.
        """
        if not 0 <= number < self.tokens:
            raise IndexError(number)
        index = self.round_of(number)
        record = self.rounds[index]
        return record, list(record.tokens())[number - self.starts[index]]

    def up_to(self, token: int) -> list[Round]:
        """The rounds before a token; the last of them is cut in front of it.

        Before a rejected or discarded token and before a correction stand the accepted tokens of their round.
        """
        if token >= self.tokens:
            return list(self.rounds)
        index = self.round_of(token)
        record, place = self.rounds[index], token - self.starts[index]
        kept = min(place, record.accepted)
        if not kept:
            return self.rounds[:index]
        cut = replace(
            record,
            drafted=record.drafted[:kept],
            p=record.p[:kept],
            q=record.q[:kept],
            u=record.u[:kept],
            beta=record.beta[:kept],
            accepted=kept,
            last=None,
            last_fate=None,
            pieces=record.pieces[:kept],
            last_piece="",
            detail=record.detail[:kept],
            refused=record.refused[:kept],
        )
        return [*self.rounds[:index], cut]
