"""Plan of a benchmark: variants, batch sizes, temperatures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specchat.engine.errors import EngineError
from specchat.engine.events import Ready
from specchat.engine.request import AUTO, Sampling, check_gamma, gamma_text

BASELINE = "none"


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of decoding: a drafter and γ."""

    drafter: str
    gamma: int | None

    @property
    def gamma_text(self) -> str:
        """γ for display."""
        if self.drafter == BASELINE:
            return "-"
        return gamma_text(self.gamma)

    @property
    def name(self) -> str:
        """Drafter and γ, for display."""
        return self.drafter if self.drafter == BASELINE else f"{self.drafter} {self.gamma_text}"


NONE = Variant(BASELINE, 0)
"""Plain decoding: the baseline of every speedup, measured in the same run."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The cells to measure, and the length of each measurement.

    Raises:
        EngineError: a value is out of range.
    """

    gammas: tuple[int | None, ...] = (4,)
    batches: tuple[int, ...] = (1,)
    temperatures: tuple[float, ...] = (0.0,)
    max_tokens: int = 96
    """Most tokens per reply."""
    passes: int = 3
    """Times each variant runs all prompts; times are medians over the passes."""
    seed: int = 1

    def __post_init__(self) -> None:
        for gamma in self.gammas:
            check_gamma(gamma)
        for name, values in (("batch", self.batches), ("passes", (self.passes,))):
            if min(values) < 1:
                raise EngineError(f"{name} is {min(values)}: it must be at least 1")
        for temperature in self.temperatures:
            Sampling(temperature=temperature)  # raises EngineError if out of range
        if self.max_tokens < 2:
            raise EngineError(f"max-tokens is {self.max_tokens}: a timed reply needs at least 2")

    def variants(self, drafters: Sequence[str], ready: Ready) -> list[Variant]:
        """Plain decoding, and each drafter with each γ.

        Args:
            drafters: names of drafters, auto for the best one; empty for all that the engine offers.

        Raises:
            EngineError: the engine has no such drafter.
        """
        drafters = [ready.drafters[0] if name == AUTO else name for name in drafters]
        for name in drafters:
            if name not in ready.drafters:
                hint = " (it needs --draft)" if name == "model" else ""
                offered = ", ".join(ready.drafters)
                raise EngineError(f"drafter {name!r} is not there{hint}: choose from {offered}")
        chosen = [name for name in dict.fromkeys(drafters or ready.drafters) if name != BASELINE]
        gammas = [gamma for gamma in dict.fromkeys(self.gammas) if gamma != 0]
        return [NONE, *(Variant(name, gamma) for name in chosen for gamma in gammas)]
