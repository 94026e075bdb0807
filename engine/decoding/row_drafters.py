"""Drafters of rows: what was read, judged and emitted reaches the drafter that each row has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from specchat.engine.decoding.drafter import Drafter
from specchat.engine.decoding.verify.outcome import Outcome
from specchat.engine.device.to_device import to_device
from specchat.engine.round import Proposer
from specchat.engine.sequence.sequence import SequenceState


class RowDrafters:
    """All drafters of an engine, each asked and told for the rows that are its own.

    Args:
        by_name: the drafters.
        on_fault: called with a row whose drafter raised; the row goes on without drafts.
    """

    def __init__(self, by_name: Mapping[str, Drafter], on_fault: Callable[[SequenceState, Exception], None]) -> None:
        self.by_name = by_name
        self._on_fault = on_fault

    def of(self, row: SequenceState) -> Drafter:
        """The row's own."""
        return self.by_name[row.drafter]

    def unread(self, row: SequenceState) -> int:
        """Tokens that the row's drafter has to read before the row's next round."""
        return self.of(row).unread(row)

    def read(self, rows: Sequence[SequenceState]) -> None:
        """Let the first row's drafter read one chunk of its rows."""
        mine = [row for row in rows if row.drafter == rows[0].drafter]
        try:
            self.of(rows[0]).read(mine)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            for row in mine:
                self._on_fault(row, error)

    def lend(self, row: SequenceState, source: int, length: int) -> int:
        """How many of a row's first `length` tokens, which another slot holds, may be copied from there."""
        return self.of(row).lend(row, source, length)

    def absorb(
        self,
        rows: Sequence[SequenceState],
        tapped: Tensor | Sequence[Tensor] | None,
        lengths: Sequence[int] | None = None,
    ) -> None:
        """Hand drafters the hidden states of tokens that the target has just read, from `SequenceState.cached` on.

        Args:
            rows: B.
            tapped: [B, T, taps x hidden size], or of each row as many as stay.
            lengths: how many of each row's T tokens stay; None for all.
        """
        if tapped is None:
            return
        part: Tensor | Sequence[Tensor]
        for name in dict.fromkeys(row.drafter for row in rows):
            mine = [i for i, row in enumerate(rows) if row.drafter == name]
            part = tapped
            if len(mine) < len(rows):
                part = (
                    tapped[to_device(mine, tapped.device)] if isinstance(tapped, Tensor) else [tapped[i] for i in mine]
                )
            own, kept = [rows[i] for i in mine], lengths and [lengths[i] for i in mine]
            try:
                self.by_name[name].absorb(own, part, kept)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                for row in own:
                    self._on_fault(row, error)

    def successors(self, rows: Sequence[SequenceState]) -> int:
        """How many of the likeliest tokens behind each one that the target reads some drafter wants to know."""
        return max(self.of(row).successors for row in rows)

    def witness(
        self,
        rows: Sequence[SequenceState],
        lengths: Sequence[int],
        outcomes: Sequence[Outcome],
        ranked: Sequence[Sequence[Sequence[int]]],
        *,
        everywhere: bool,
    ) -> None:
        """Tell drafters that want to know it what the target found likeliest behind the tokens of a round's pass.

        Args:
            rows: B.
            lengths: how many tokens were drafted for each.
            outcomes: what became of them.
            ranked: per row and token of the pass, the token and the likeliest behind it; may be empty where nobody
                wants it.
            everywhere: whether it means something behind rejected tokens too.
        """
        for i, row in enumerate(rows):
            drafter = self.of(row)
            if not drafter.successors:
                continue
            outcome = outcomes[i]
            nodes = range(lengths[i] + 1) if everywhere else (0, *(outcome.path or range(1, outcome.accepted + 1)))
            seen = [ranked[i][node] for node in nodes]
            try:
                drafter.witness(row, [each[0] for each in seen], [each[1:] for each in seen])
            except Exception as error:
                self._on_fault(row, error)

    def proposers(self, row: SequenceState, drafted: Sequence[int]) -> tuple[Proposer, ...]:
        """The drafts behind a row's last draft, where its drafter puts several together; `observe` follows."""
        if not drafted:
            return ()
        try:
            return self.of(row).proposers(row, drafted)
        except Exception as error:
            self._on_fault(row, error)
            return ()

    def observe(self, row: SequenceState, emitted: Sequence[int]) -> None:
        """A round has added `emitted` to `row.tokens`."""
        try:
            self.of(row).observe(row, emitted)
        except Exception as error:
            self._on_fault(row, error)
