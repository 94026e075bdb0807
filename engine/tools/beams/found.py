"""What a search has found, and what it took."""

from __future__ import annotations

from dataclasses import dataclass

from specchat.engine.events import FinishReason
from specchat.engine.request import AUTO, DEFAULT_GAMMA, gamma_text

_FEW = 0.1
"""Share of passes saved below which it is said why."""


@dataclass(frozen=True, slots=True)
class FoundBeam:
    """One complete text."""

    text: str
    token_ids: tuple[int, ...]
    """The one that ended it included."""
    log_probability: float
    score: float
    """Log-probability per token: what beams are ordered by."""
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class FoundBeams:
    """The beams of one prompt."""

    beams: tuple[FoundBeam, ...]
    """Best first."""
    prompt_tokens: int
    steps: int
    """Of the search: passes of the target that plain beam search makes."""
    target_passes: int
    """That this one made."""
    tokens_read: int
    """In them, by the target."""
    drafter: str
    gamma: int | None
    """Steps that were drafted ahead: 0 for none, None for as many as paid."""
    draft_width: int
    """Texts that were drafted for each of them."""
    seconds: float
    """Of the search, without the prompt."""
    target: str
    device: str
    dtype: str
    thinking_switch: bool
    """Whether the chat template can switch thinking on and off."""
    notices: tuple[str, ...]
    """What the user should know, a sentence each."""

    @property
    def passes_saved(self) -> int:
        """Passes that plain beam search would have made in addition."""
        return self.steps - self.target_passes

    def json(self) -> dict[str, object]:
        """What was found and what it took, as one object."""
        best = self.beams[0]
        return {
            "text": best.text,
            "beams": [
                {
                    "text": beam.text,
                    "token_ids": list(beam.token_ids),
                    "log_probability": beam.log_probability,
                    "score": beam.score,
                    "finish_reason": beam.finish_reason,
                }
                for beam in self.beams
            ],
            "prompt_tokens": self.prompt_tokens,
            "steps": self.steps,
            "target_passes": self.target_passes,
            "passes_saved": self.passes_saved,
            "tokens_read": self.tokens_read,
            "drafter": self.drafter,
            "gamma": AUTO if self.gamma is None else self.gamma,
            "draft_width": self.draft_width,
            "seconds": self.seconds,
            "device": self.device,
            "dtype": self.dtype,
        }

    def summary(self) -> str:
        """One line: the passes that drafts have saved."""
        if self.gamma == 0:
            return f"{self.target_passes} target passes, one for each step: nothing was drafted"
        share = self.passes_saved / self.steps
        saved = f"{self.target_passes} target passes instead of {self.steps}: {self.passes_saved} saved ({share:.0%})"
        drafted = f"drafted by {self.drafter}, gamma {gamma_text(self.gamma)}"
        if self.gamma is None and share < _FEW:
            drafted += f"; wide passes cost too much here to draft more, --gamma {DEFAULT_GAMMA} does so all the same"
        return f"{saved}, {drafted}"
