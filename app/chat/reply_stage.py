"""How far a reply has progressed, and why it ended."""

from collections.abc import Iterable
from enum import StrEnum

from specchat import engine

ENDINGS: dict[engine.FinishReason, str] = {
    engine.FinishReason.EOS: "complete", engine.FinishReason.STOP: "stop string",
    engine.FinishReason.LENGTH: "token limit", engine.FinishReason.CONTEXT: "context full",
    engine.FinishReason.REPEATS: "repeats itself", engine.FinishReason.CANCELLED: "stopped",
    engine.FinishReason.ERROR: "failed",
}  # fmt: skip
"""Why a reply ended, in words."""


class Stage(StrEnum):
    """Progress of a reply."""

    WAITING = "waiting"
    """Not yet admitted: the models are loading, or every slot is in use."""
    READING = "reading"
    """Prefill of its prompt."""
    ANSWERING = "answering"
    ENDED = "ended"
    INTERRUPTED = "interrupted"
    """Stored without an end: the program was killed while it was written."""


RUNNING = (Stage.ANSWERING, Stage.READING, Stage.WAITING)


def furthest(stages: Iterable[Stage | None]) -> Stage | None:
    """The furthest stage of running replies; None if none is running."""
    found = set(stages)
    return next((stage for stage in RUNNING if stage in found), None)
