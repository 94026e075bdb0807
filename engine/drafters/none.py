"""The drafter that never drafts: every round is a plain one."""

from __future__ import annotations

from specchat.engine.decoding.drafter import Drafter, Recipe
from specchat.engine.drafters.build_context import BuildContext
from specchat.engine.request import NO_DRAFTER


class NoDrafter(Drafter):
    """Baseline decoding: one token per target pass. It is never asked for drafts."""

    name = NO_DRAFTER
    recipe = Recipe()


def build(context: BuildContext, name: str) -> NoDrafter:  # noqa: ARG001
    """The drafter for an engine."""
    return NoDrafter()
