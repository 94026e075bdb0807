"""Draft-model drafter: drafts with a second, smaller model that shares the target's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.engine.runner.runner import Runner
from specchat.engine.runner.to_device import to_device
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.sampling.rng import Stream, uniforms
from specchat.engine.sequence.scheduler import common_prefix
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.speculation.drafters.base import Drafter
from specchat.engine.speculation.drafters.model_steps import ModelSteps
from specchat.engine.speculation.gamma.budget import Budget
from specchat.engine.speculation.proposal import Draft

_LEAD = 2
"""Tokens fed in the first draft step: after a full acceptance the last drafted one has not been fed yet."""


class ModelDrafter(Drafter):
    """A draft model with a cache of its own, its slots those of the target.

    A row's prompt enters the draft cache in chunks before the row's first round, the prompts of several rows together
    where they fit into one. Every draft step is one forward pass for all rows; tokens and distributions stay on the
    device.

    Args:
        model: the draft model, with as many slots and columns as the target.
        penalties: shared with the target, so that p and q know the same context.
        vocabulary: V, the size of the target's distributions; what the draft has beyond it is never drafted.
        chunk: prompt tokens fed in one pass.
    """

    name = "model"

    def __init__(self, model: Runner, penalties: Penalties, vocabulary: int, chunk: int) -> None:
        self._model = model
        self._steps = ModelSteps(model, penalties, vocabulary, _LEAD)
        self._chunk = chunk
        self._content: list[list[int]] = [[] for _ in range(model.cache.slots)]
        self._cached: dict[str, int] = {}
        self._asked: dict[str, int] = {}

    @property
    def graph_bytes(self) -> int:
        """Memory of distributions."""
        return self._steps.graph_bytes

    def capture(self) -> None:
        """The steps in all shapes, and plain passes, which rows with penalties take."""
        self._steps.capture()
        if self._model.graph_runner is not None:
            self._model.graph_runner.capture(range(1, _LEAD + 1))

    def admit(self, row: SequenceState) -> None:
        """Note how much of the prompt the slot still holds from an earlier turn."""
        self._cached[row.request.request_id] = common_prefix(self._content[row.slot], row.tokens)

    def unread(self, row: SequenceState) -> int:
        """What the draft cache lacks of the prompt; later what it lacks, where that is more than one chunk: the rest is
        read with the next draft."""
        behind = self._behind(row, _LEAD)
        return behind if behind > (self._chunk if row.rounds else 0) else 0

    def read(self, rows: Sequence[SequenceState]) -> None:
        """Feed one chunk, padding included: of the first row, and all that is left of others."""
        together, width = [rows[0]], min(self._behind(rows[0], _LEAD), self._chunk)
        for row in rows[1:]:
            wide = max(width, self._behind(row, _LEAD))
            if wide * (len(together) + 1) <= self._chunk:
                together, width = [*together, row], wide
        self._feed(together, _LEAD)

    def _behind(self, row: SequenceState, lead: int) -> int:
        """Tokens of a row but for the last `lead` that the draft cache lacks."""
        return len(row.tokens) - lead - self._cached[row.request.request_id]

    def propose(
        self,
        rows: Sequence[SequenceState],
        gammas: Sequence[int],
        budgets: Sequence[Budget | None] = (),  # noqa: ARG002
    ) -> Draft:
        """`max(gammas)` draft steps for all rows; q is kept unless every row is greedy."""
        lead = min(_LEAD, *(len(row.tokens) for row in rows))
        self._catch_up(rows, lead)
        steps = max(gammas)
        u = uniforms([r.seed for r in rows], [r.rounds for r in rows], Stream.DRAFT, steps)
        tokens, q = self._steps.draft(rows, lead, steps, u)
        for row, gamma in zip(rows, gammas, strict=True):
            self._asked[row.request.request_id] = gamma
        return Draft(tokens, list(gammas), q)

    def observe(self, row: SequenceState, emitted: Sequence[int]) -> None:
        """Keep what was accepted: the last drafted token was never fed, so it is not cached even then."""
        asked = self._asked.pop(row.request.request_id, 0)
        if asked:
            before = len(row.tokens) - len(emitted)
            self._cached[row.request.request_id] = before + min(len(emitted), asked) - 1

    def release(self, row: SequenceState) -> None:
        """Leave the slot's content to the next turn."""
        self._content[row.slot] = row.tokens[: self._cached.pop(row.request.request_id)]
        self._asked.pop(row.request.request_id, None)

    def _catch_up(self, rows: Sequence[SequenceState], lead: int) -> None:
        """Feed what the draft has not seen, all rows at once, but for the last `lead` tokens of each."""
        while behind := [row for row in rows if self._behind(row, lead) > 0]:
            self._feed(behind, lead)

    def _feed(self, rows: Sequence[SequenceState], lead: int) -> None:
        """Feed a chunk of each row that lacks some, in one pass."""
        starts = [self._cached[row.request.request_id] for row in rows]
        ends = [min(s + self._chunk, len(r.tokens) - lead) for s, r in zip(starts, rows, strict=True)]
        length = max(end - start for start, end in zip(starts, ends, strict=True))
        # Rows with less to feed start earlier: what is fed again is written again, the same as before.
        starts = [max(0, end - length) for end in ends]
        tokens = [r.tokens[s : s + length] for s, r in zip(starts, rows, strict=True)]
        fed = to_device([t + [0] * (length - len(t)) for t in tokens], self._model.device)
        self._model.prefill(fed, [row.slot for row in rows], starts)
        for row, end in zip(rows, ends, strict=True):
            self._cached[row.request.request_id] = end
