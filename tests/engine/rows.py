"""Rows of the engine that no engine runs."""

from collections.abc import Sequence

from specchat.engine.events import Outbox
from specchat.engine.request import MAX_GAMMA, Request
from specchat.engine.sequence.sequence import SequenceState


def row_of(
    tokens: Sequence[int], slot: int = 0, request: Request | None = None, *, cached: int = 0, seed: int = 0
) -> SequenceState:
    """A row of this text, all of it prompt, that has room for the longest draft."""
    request = request or Request(f"r{slot}", prompt_ids=(1,))
    drafter = request.drafter or "none"
    row = SequenceState(request, Outbox(), slot, [*tokens], len(tokens), cached, seed, None, drafter)  # type: ignore[arg-type]
    row.room = MAX_GAMMA
    return row
