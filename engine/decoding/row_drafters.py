"""Calls of the drafters of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from specchat.engine.decoding.drafter import Drafter
from specchat.engine.device.device import to_device
from specchat.engine.sequence.sequence import SequenceState


class RowDrafters:
    """All drafters of an engine, each called with its own rows.

    Args:
        by_name: the drafters.
        on_fault: called with a row whose drafter raised; the row continues without drafts.
    """

    def __init__(self, by_name: Mapping[str, Drafter], on_fault: Callable[[SequenceState, Exception], None]) -> None:
        self.by_name = by_name
        self._on_fault = on_fault

    def of(self, row: SequenceState) -> Drafter:
        """The drafter of a row."""
        return self.by_name[row.drafter]

    def has_read(self, row: SequenceState) -> bool:
        """Whether the row's drafter needs no prefill before the row's next round."""
        try:
            return not self.of(row).unread(row)
        except Exception as error:
            self._on_fault(row, error)
            return True

    def prefill(self, rows: Sequence[SequenceState]) -> None:
        """One chunk for the first row's drafter, of the rows that it drafts for."""
        mine = [row for row in rows if row.drafter == rows[0].drafter]
        self._call(mine, self.of(rows[0]).prefill, mine)

    def on_hidden_states(
        self,
        rows: Sequence[SequenceState],
        states: Tensor | Sequence[Tensor] | None,
        lengths: Sequence[int] | None = None,
    ) -> None:
        """Give drafters the hidden states of tokens that the target has just read, from `SequenceState.cached` on.

        Args:
            rows: B.
            states: [B, T, taps x hidden size], or per row those of the kept tokens; None without taps.
            lengths: how many of each row's T tokens are kept; None for all.
        """
        if states is None:
            return
        names = dict.fromkeys(row.drafter for row in rows)
        if len(names) == 1:
            self._call(rows, self.of(rows[0]).on_hidden_states, rows, states, lengths)
            return
        for name in names:
            mine = [i for i, row in enumerate(rows) if row.drafter == name]
            part = states[to_device(mine, states.device)] if isinstance(states, Tensor) else [states[i] for i in mine]
            own = [rows[i] for i in mine]
            self._call(own, self.by_name[name].on_hidden_states, own, part, lengths and [lengths[i] for i in mine])

    def on_accepted(self, row: SequenceState, emitted: Sequence[int]) -> None:
        """A round has added `emitted` to `row.tokens`."""
        self._call([row], self.of(row).on_accepted, row, emitted)

    def _call(self, rows: Sequence[SequenceState], hook: Callable[..., None], *arguments: Any) -> None:
        """Call a hook; whatever it raises, but for a lack of memory, costs these rows their drafts only."""
        try:
            hook(*arguments)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            for row in rows:
                self._on_fault(row, error)
