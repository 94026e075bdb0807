"""Bias and penalties of running rows as the packed CPU kernels read them."""

from __future__ import annotations

from array import array

from specchat.engine.kernels.row_penalties import RowPenalties, break_flags
from specchat.engine.sequence.sequence import SequenceState


class PenaltiesOfRows:
    """Bias and penalties by slot; created when a row starts.

    Args:
        vocabulary: V.
    """

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self._known: dict[int, RowPenalties] = {}
        self._breaks: dict[tuple[str, ...], array[int]] = {}

    def of(self, row: SequenceState) -> RowPenalties:
        """Bias and penalties of a row."""
        known = self._known.get(row.slot)
        if known is None or known.tokens is not row.tokens:
            sampling, texts = row.request.sampling, row.request.sampling.dry_sequence_breakers
            if sampling.dry and texts not in self._breaks:
                self._breaks[texts] = break_flags(texts, row.text.names(self.vocabulary))
            known = RowPenalties(sampling, row.tokens, row.reply_begin, self._breaks.get(texts))
            self._known[row.slot] = known
        return known
