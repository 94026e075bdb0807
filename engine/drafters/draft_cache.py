"""Cached length of every row in the cache of a draft model; drafters of one model share it."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.engine.decoding.backend import Backend
from specchat.engine.device.device import CAPTURED, to_device
from specchat.engine.sequence.sequence import SequenceState

LEAD = 2
"""Tokens fed in the first draft step: after a full acceptance the last drafted one has not been fed yet."""


class DraftCache:
    """A draft model's cache, with the slots of the target.

    A row's prompt enters it in chunks before the row's first round, the prompts of several rows together where they fit
    into one. What it has read stays with the blocks of the text, whichever drafter of the model reads that next.

    Args:
        model: the draft model, with as many slots and columns as the target.
        chunk: prompt tokens fed in one pass.
    """

    def __init__(self, model: Backend, chunk: int) -> None:
        self._model = model
        self._chunk = chunk
        self._cached: dict[str, int] = {}
        self._drafted: dict[str, int] = {}
        """Length of the chain that is being verified, by request; its last token was never fed."""

    def admit(self, row: SequenceState) -> None:
        """Note how much of the text is known from an earlier turn."""
        self._model.admit(row)
        cache = self._model.cache
        known = cache.attach(row.slot, row.cached) if self._model.capabilities.prefixes else 0
        if cache.states:  # a step feeds the last tokens again
            known = cache.states.reusable(row.slot, min(known, max(len(row.tokens) - LEAD, 0)))
        self._cached[row.request.request_id] = known

    def release(self, row: SequenceState) -> None:
        """Leave what was read to the next turn."""
        self._drafted.pop(row.request.request_id, None)
        cache, known = self._model.cache, min(self._cached.pop(row.request.request_id), row.cached)
        cache.mark(row.slot, 0, known)
        if cache.states:  # states of rejected tokens go
            cache.states.give(row.slot, cache.states.take(row.slot, min(known, max(len(row.tokens) - LEAD, 0))))

    def expect(self, row: SequenceState, length: int) -> None:
        """Note that a chain of `length` tokens has been drafted."""
        self._drafted[row.request.request_id] = length

    def on_accepted(self, row: SequenceState, emitted: Sequence[int]) -> None:
        """Keep what was accepted of a chain and has been fed."""
        length = self._drafted.pop(row.request.request_id, 0)
        if length:
            self.keep(row, len(row.tokens) - len(emitted) + min(len(emitted), length) - 1)

    def cached(self, row: SequenceState) -> int:
        """Number of the row's leading tokens that are cached."""
        return self._cached[row.request.request_id]

    def keep(self, row: SequenceState, length: int) -> None:
        """Count the first `length` tokens of the row as cached."""
        self._cached[row.request.request_id] = length

    def unread(self, row: SequenceState) -> int:
        """Number of tokens to prefill: prompt tokens that the cache lacks; once the reply has begun, 0 unless
        more than a chunk is missing, as fewer are fed with the next draft."""
        behind = self._behind(row, LEAD)
        return behind if behind > (self._chunk if row.emitted else 0) else 0

    def prefill(self, rows: Sequence[SequenceState]) -> None:
        """Feed one chunk, padding included: of the first row, and all that is left of others."""
        batch, width = [rows[0]], min(self._behind(rows[0], LEAD), self._chunk)
        for row in rows[1:]:
            wide = max(width, self._behind(row, LEAD))
            if wide * (len(batch) + 1) <= self._chunk:
                batch, width = [*batch, row], wide
        self._feed(batch, LEAD)

    def catch_up(self, rows: Sequence[SequenceState]) -> int:
        """Feed what the cache lacks, all rows at once, but for the last `LEAD` tokens of each, fewer where a row has no
        more; return the number of tokens left."""
        lead = min(LEAD, *(len(row.tokens) for row in rows))
        while behind := [row for row in rows if self._behind(row, lead) > 0]:
            self._feed(behind, lead)
        return lead

    def _behind(self, row: SequenceState, lead: int) -> int:
        """Tokens of a row but for the last `lead` that the cache lacks."""
        return len(row.tokens) - lead - self._cached[row.request.request_id]

    def _feed(self, rows: Sequence[SequenceState], lead: int) -> None:
        """Feed a chunk of each row that lacks some, in one pass."""
        if self._model.cache.states and len(rows) > 1:  # none may be fed again from an earlier place
            for row in rows:
                self._feed([row], lead)
            return
        starts = [self._cached[row.request.request_id] for row in rows]
        ends = [min(s + self._chunk, len(r.tokens) - lead) for s, r in zip(starts, rows, strict=True)]
        length = max(end - start for start, end in zip(starts, ends, strict=True))
        # Rows with less to feed start earlier: what is fed again is written again, the same as before.
        starts = [max(0, end - length) for end in ends]
        tokens = [r.tokens[s : s + length] for s, r in zip(starts, rows, strict=True)]
        fed = to_device([t + [0] * (length - len(t)) for t in tokens], self._model.device)
        slots = [row.slot for row in rows]
        if self._model.capabilities.captured and length <= CAPTURED[-1]:
            self._model.forward(fed, slots, starts)  # one launch
        else:
            self._model.prefill(fed, slots, starts)
        for row, end in zip(rows, ends, strict=True):
            self._cached[row.request.request_id] = end
