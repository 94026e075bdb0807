"""Draft-model drafter: drafts with a second, smaller model that shares the target's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.engine.backends.runner import Runner
from specchat.engine.decoding.drafter import Drafter
from specchat.engine.decoding.gamma.budget import Budget
from specchat.engine.decoding.proposal import Draft
from specchat.engine.device.padding import captured_width
from specchat.engine.drafters.draft_cache import LEAD, DraftCache
from specchat.engine.drafters.model_steps import ModelSteps
from specchat.engine.sampling.rng import Stream, uniforms
from specchat.engine.sequence.sequence import SequenceState


class ModelDrafter(Drafter):
    """A draft model that drafts chains.

    Every draft step is one forward pass for all rows; tokens and distributions stay on the device.

    Args:
        model: the draft model, with as many slots and columns as the target.
        cache: what it holds of every row.
        steps: its draft steps.
    """

    name = "model"

    def __init__(self, model: Runner, cache: DraftCache, steps: ModelSteps) -> None:
        self._model = model
        self._cache = cache
        self._steps = steps
        self._asked: dict[str, int] = {}

    @property
    def graph_bytes(self) -> int:
        """Memory of distributions."""
        return self._steps.graph_bytes

    def capture(self) -> None:
        """The steps in all shapes, and plain passes, which rows with penalties take."""
        self._steps.capture()
        if self._model.graph_runner is not None:
            self._model.graph_runner.capture({captured_width(length) for length in range(1, LEAD + 1)})

    def admit(self, row: SequenceState) -> None:
        """Note how much of the prompt the slot still holds from an earlier turn."""
        self._cache.admit(row)

    def unread(self, row: SequenceState) -> int:
        """What the draft cache lacks."""
        return self._cache.unread(row)

    def read(self, rows: Sequence[SequenceState]) -> None:
        """Feed one chunk."""
        self._cache.read(rows)

    def propose(
        self,
        rows: Sequence[SequenceState],
        gammas: Sequence[int],
        budgets: Sequence[Budget | None] = (),  # noqa: ARG002
    ) -> Draft:
        """`max(gammas)` draft steps for all rows; q is kept unless every row is greedy."""
        lead, steps = self._cache.catch_up(rows), max(gammas)
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
            self._cache.keep(row, before + min(len(emitted), asked) - 1)

    def release(self, row: SequenceState) -> None:
        """Leave the slot's content to the next turn."""
        self._cache.release(row)
        self._asked.pop(row.request.request_id, None)
