"""Options of a distillation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specchat.engine.errors import EngineError

DEFAULT_KIND = "eagle"
COUNTED = "bigram"
"""The kind that is counted in texts."""
_CONTEXT = 1024


@dataclass(frozen=True, slots=True)
class DistillOptions:
    """Options of the command line.

    Raises:
        EngineError: a value is out of range.
    """

    models: Path
    target: str
    out: Path
    kind: str = DEFAULT_KIND
    """One of `engine.tools.distill.kinds.KINDS`."""
    minutes: float = 120.0
    prompts: Path | None = None
    """File of prompts (`engine.tools.distill.prompts`); without it the target writes the user turns too."""
    begin: str | None = None
    """Finished draft that the training begins with (`engine.tools.distill.beginning`)."""
    text: tuple[Path, ...] = ()
    """Files that tables are counted in; for other kinds, folders of earlier distillations whose text is used too."""
    device: str = "auto"
    dtype: str = "auto"
    slots: int = 4
    """Requests at once in the evaluation."""
    context: int = _CONTEXT
    """Context of the engine in the evaluation, in tokens; the model's own if that is less."""

    def __post_init__(self) -> None:
        if not self.minutes > 0:
            raise EngineError(f"minutes is {self.minutes:g}: it must be above 0")
        if self.begin is not None and self.kind == COUNTED:
            raise EngineError(
                f"from is for kinds that are trained, and kind {COUNTED} is counted: leave one of them out"
            )
