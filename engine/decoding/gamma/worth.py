"""What growing drafts have been worth beyond their price, by drafter, kind of sampling and batch size, and by row."""

from __future__ import annotations

from dataclasses import dataclass

from specchat.engine.decoding.gamma.acceptance_model import AcceptanceModel

_FORGET = 1 / 12
"""Weight of one draft in what a row's drafts have been worth."""
_MEMORY = 1 / 64
"""Weight of one draft in what those of all rows have been worth; the first ones weigh more."""
_FIRST = 2
"""How many drafts' worth of experience the first guess stands for."""
_CURIOSITY = 0.03
"""What a new row's drafts are thought to be worth beyond those of others, while little is known."""
_TYPICAL = 0.35
"""Tokens that a draft of one step gains, before anything is known."""


@dataclass(slots=True)
class _Known:
    worth: float
    drafts: int = 0


class Worths:
    """The experience of one engine."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, bool], int], _Known] = {}

    def of(self, row: AcceptanceModel, rows: int, price: float) -> float:
        """What a row's draft may be thought to be worth.

        Args:
            row: its own experience; taken over from another batch size as far as it differed from others'.
            rows: size of the batch.
            price: of one draft step and one token, in tokens.
        """
        if row.worth_at != rows:
            known = self._known.setdefault((row.kind, rows), _Known(_TYPICAL - price))
            before = self._known.get((row.kind, row.worth_at))
            own = row.worth - before.worth if before else _CURIOSITY / (1 + known.drafts / _FIRST)
            row.worth, row.worth_at = known.worth + own, rows
        return row.worth

    def learn(self, row: AcceptanceModel, accepted: int) -> None:
        """Take in what a draft has gained, if the row has made one."""
        if row.price is None:
            return
        # What one round that was held up seems to cost must not outweigh all others.
        gained, row.price = max(accepted - row.price, -1.0), None
        row.worth += _FORGET * (gained - row.worth)
        if known := self._known.get((row.kind, row.worth_at)):
            known.drafts += 1
            known.worth += max(_MEMORY, 1 / (_FIRST + known.drafts)) * (gained - known.worth)
