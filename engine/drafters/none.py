"""The drafter that never drafts: every round is a plain one."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.engine.decoding.drafter import Drafter
from specchat.engine.decoding.proposal import Draft
from specchat.engine.drafters.build_context import BuildContext
from specchat.engine.request import NO_DRAFTER
from specchat.engine.sequence.sequence import SequenceState


class NoDrafter(Drafter):
    """Baseline decoding: one token per target pass."""

    name = NO_DRAFTER

    def propose(self, rows: Sequence[SequenceState], *_: object, **__: object) -> Draft:
        """No tokens."""
        return Draft.of_chains([[] for _ in rows])


def build(context: BuildContext, name: str) -> NoDrafter:  # noqa: ARG001
    """The drafter for an engine."""
    return NoDrafter()
