"""What `specchat evaluate` is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specchat.engine.errors import EngineError
from specchat.engine.request import Sampling


@dataclass(frozen=True, slots=True)
class EvaluateOptions:
    """Options of the command line.

    Raises:
        EngineError: a value is out of range.
    """

    models: Path
    target: str
    files: tuple[Path, ...]
    """Texts, as `engine.tools.evaluate.texts` reads them."""
    draft: str | None = None
    drafters: tuple[str, ...] = ()
    """Those to evaluate; all that there are if empty."""
    gammas: tuple[int, ...] = (4,)
    temperature: float = 0.0
    """How the texts' tokens were chosen: 0 greedy, else drawn."""
    limit: int = 100
    """Largest number of texts."""
    max_tokens: int = 500
    """Tokens of each text that are used."""
    device: str = "auto"
    dtype: str = "auto"
    quantize: str = "auto"
    context: int = 4096
    """Most tokens of a text, its prompt included."""

    def __post_init__(self) -> None:
        for name, value in (
            ("limit", self.limit),
            ("max-tokens", self.max_tokens),
            *(("gamma", g) for g in self.gammas),
        ):
            if value < 1:
                raise EngineError(f"{name} is {value}: it must be at least 1")
        Sampling(temperature=self.temperature)  # says so where it is out of range
        if not self.files:
            raise EngineError("there is no text: name files of chats, traces or data sets")
