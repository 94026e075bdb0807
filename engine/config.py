"""Configuration of an engine: models, device, dtype, capacity."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from specchat.engine.errors import EngineError

ASSETS = Path(__file__).resolve().parents[1] / "assets"
SHIPPED_HEADS = ASSETS / "heads"
"""Draft heads that come with specchat."""

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16", "float16")
QUANTIZE = ("auto", "q8", "q4", "none")


def models_folder() -> Path:
    """Default folder of fetched and converted models: large, but replaceable.

    The platform's cache folder, or `SPECCHAT_HOME/models`; it is not created here.
    """
    if home := os.environ.get("SPECCHAT_HOME"):
        return Path(home).expanduser().absolute() / "models"
    try:
        import platformdirs
    except ImportError:  # the engine also runs where only torch, transformers and safetensors are installed
        return Path("~/.cache/specchat/models").expanduser()
    return platformdirs.user_cache_path("specchat", appauthor=False) / "models"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Configuration of one engine.

    Raises:
        EngineError: a value is out of range.
    """

    target: str
    """A preset, a hub id, a folder of safetensors, or a GGUF file."""
    models: Path = field(default_factory=models_folder)
    """Folder of fetched and converted models (`engine.models.store`)."""
    draft: str | None = None
    """A draft model, named like the target, or the folder of a draft head; several draft models with commas between;
    None for the target's draft head if `heads` has one."""
    heads: tuple[Path, ...] = (SHIPPED_HEADS,)
    """Folders of draft heads, searched in this order."""
    device: str = "auto"
    """One of `DEVICES`, or a torch device such as cuda:1."""
    dtype: str = "auto"
    """One of `DTYPES`; auto is bfloat16 where the device computes in it, else float32. Any other than auto expands
    what is quantised."""
    quantize: str = "auto"
    """One of `QUANTIZE`, for the CPU: auto runs a GGUF file's weights as they are and others unquantised; q8 and q4
    quantise; none expands what is quantised."""
    slots: int = 4
    """Requests that run at once; each has its own slot of the KV cache."""
    context: int = 4096
    """Tokens per slot, prompt and reply together; the model's own limit if that is lower."""
    queue: int = 1024
    """Requests that may wait for a slot; one more is refused."""
    prefill_chunk: int = 256
    """Tokens per prefill chunk; running requests wait for one chunk between rounds, for two if several prompts wait."""

    exact: bool = False
    """Run the target in batch-invariant passes, so that greedy output is identical whatever drafter is used."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise EngineError(f"dtype {self.dtype!r} is not known: choose one of {', '.join(DTYPES)}")
        if self.quantize not in QUANTIZE:
            raise EngineError(f"quantize {self.quantize!r} is not known: choose one of {', '.join(QUANTIZE)}")
        if self.quantize in ("q8", "q4") and self.dtype != "auto":
            raise EngineError(f"quantize {self.quantize} contradicts dtype {self.dtype}: leave one of them at auto")
        for name in ("slots", "context", "queue", "prefill_chunk"):
            if (value := getattr(self, name)) < 1:
                raise EngineError(f"{name.replace('_', ' ')} is {value}: it must be at least 1")

    @property
    def drafts(self) -> tuple[str, ...]:
        """The drafts that are named; a path that is there is one, whatever its name."""
        if not self.draft or Path(self.draft).expanduser().exists():
            return (self.draft,) if self.draft else ()
        return tuple(name for part in self.draft.split(",") if (name := part.strip())) or (self.draft,)
