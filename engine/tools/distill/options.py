"""Options and result of a distillation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from specchat.engine.drafters.head.folder import HeadAcceptance
from specchat.engine.errors import EngineError

DEFAULT_KIND = "eagle"
COUNTED = "bigram"
"""The kind that is counted in texts, not trained."""


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
    """eagle, medusa, pass or bigram."""
    minutes: float = 120.0
    prompts: Path | None = None
    """File of prompts (`engine.tools.distill.text.read_prompts`); without it the target writes the user turns too."""
    begin: str | None = None
    """Finished draft that the training starts from (`engine.tools.distill.work_folder.find_start`)."""
    text: tuple[Path, ...] = ()
    """Files that tables are counted in; for other kinds, folders of earlier distillations whose text is used too."""
    device: str = "auto"
    dtype: str = "auto"
    slots: int = 4
    """Requests at once in the evaluation."""
    context: int = 1024
    """Context of the engine in the evaluation, in tokens; the model's own if that is less."""

    def __post_init__(self) -> None:
        if not self.minutes > 0:
            raise EngineError(f"minutes is {self.minutes:g}: it must be above 0")
        if self.begin is not None and self.kind == COUNTED:
            raise EngineError(
                f"from is for kinds that are trained, and kind {COUNTED} is counted: leave one of them out"
            )


@dataclass(frozen=True, slots=True)
class Distilled:
    """A draft in a folder that `--draft` loads."""

    noun: str
    """What it is, with its article: a draft head."""
    target: str
    """Display name of the target."""
    tokens: int
    """Tokens of the text that it was made from."""
    steps: int
    """Updates of its weights; 0 for counted tables."""
    minutes: float
    """Time spent, text and training together."""
    steps_before: int = 0
    """Updates of the draft that the training started from, included in `steps`; its tokens and minutes are included
    too."""
    gamma: int = 0
    """Draft length of the evaluation."""
    reached: Mapping[str, HeadAcceptance] = field(default_factory=dict)
    """Acceptance on prompts that are not in the text, greedy and at temperature 1; empty for counted tables."""
