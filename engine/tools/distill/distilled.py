"""What a distillation has made, for the user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specchat.engine.drafters.head.folder import HeadAcceptance


@dataclass(frozen=True, slots=True)
class Distilled:
    """Something that drafts, in a folder that `--draft` loads."""

    noun: str
    """What it is, with its article: a draft head."""
    target: str
    """Display name of the target."""
    tokens: int
    """Tokens of the text that it was made from."""
    steps: int
    """Updates of its weights; 0 where it has been counted, not trained."""
    minutes: float
    """Time spent, text and training together."""
    steps_before: int = 0
    """How many of the steps the draft had that the training began with, whose tokens and minutes are counted too."""
    gamma: int = 0
    """Draft length of the evaluation."""
    reached: Mapping[str, HeadAcceptance] = field(default_factory=dict)
    """What it reaches on prompts that are not in the text, by how tokens were chosen; empty where that is not known."""
