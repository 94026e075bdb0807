"""What a benchmark is to measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import EngineError
from engine.events import Ready
from engine.request import MAX_GAMMA, Sampling

AUTO = None
"""The γ that lets the engine choose."""
BASELINE = "none"


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of decoding."""

    drafter: str
    gamma: int | None

    @property
    def gamma_text(self) -> str:
        """γ for people."""
        if self.drafter == BASELINE:
            return "-"
        return "auto" if self.gamma is AUTO else str(self.gamma)


NONE = Variant(BASELINE, 0)
"""Plain decoding: what every speed-up is measured against, always in the same run."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The cells to measure, and how long to measure each.

    Raises:
        EngineError: a value is out of range.
    """

    gammas: tuple[int | None, ...] = (4,)
    batches: tuple[int, ...] = (1,)
    temperatures: tuple[float, ...] = (0.0,)
    max_tokens: int = 96
    """Longest reply."""
    passes: int = 3
    """How often every variant runs all prompts; times are medians over the passes."""
    seed: int = 1

    def __post_init__(self) -> None:
        for gamma in self.gammas:
            if gamma is not AUTO and not 0 <= gamma <= MAX_GAMMA:
                raise EngineError(f"gamma is {gamma}: it must be auto, or from 0 (no drafting) to {MAX_GAMMA}")
        for name, values in (("batch", self.batches), ("passes", (self.passes,))):
            if min(values) < 1:
                raise EngineError(f"{name} is {min(values)}: it must be at least 1")
        for temperature in self.temperatures:
            Sampling(temperature=temperature)  # it says itself what it cannot be
        if self.max_tokens < 2:
            raise EngineError(f"max-tokens is {self.max_tokens}: a timed reply needs at least 2")

    def variants(self, drafters: Sequence[str], ready: Ready) -> list[Variant]:
        """Plain decoding, and each drafter with each γ.

        Args:
            drafters: what to measure; empty for everything that the engine offers.

        Raises:
            EngineError: the engine has no such drafter.
        """
        for name in drafters:
            if name not in ready.drafters:
                hint = " (it needs --draft)" if name == "model" else ""
                offered = ", ".join(ready.drafters)
                raise EngineError(f"drafter {name!r} is not there{hint}: choose from {offered}")
        chosen = [name for name in dict.fromkeys(drafters or ready.drafters) if name != BASELINE]
        gammas = [gamma for gamma in dict.fromkeys(self.gammas) if gamma != 0]
        return [NONE, *(Variant(name, gamma) for name in chosen for gamma in gammas)]


def parse_gamma(text: str) -> int | None:
    """A γ as typed: a number, or auto.

    Raises:
        EngineError: it is neither.
    """
    if text == "auto":
        return AUTO
    try:
        return int(text)
    except ValueError:
        raise EngineError(f"gamma is {text!r}: it must be a whole number or auto") from None
