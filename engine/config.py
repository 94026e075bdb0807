"""How an engine is set up: which models, on what device, with how much room."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.errors import EngineError

SHIPPED_HEADS = Path(__file__).resolve().parents[1] / "assets" / "heads"
"""Draft heads that come with specchat."""

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Set-up of one engine.

    Raises:
        EngineError: a value is out of range.
    """

    target: str
    """A preset, a hub id, a folder of safetensors, or a GGUF file."""
    models: Path
    """The folder that holds fetched and converted models (`engine.model_store`)."""
    draft: str | None = None
    """A draft model, named as the target is, or the folder of a draft head; None for a head made for the target, where
    `heads` hold one."""
    heads: tuple[Path, ...] = (SHIPPED_HEADS,)
    """Folders of draft heads, looked through in this order."""
    device: str = "auto"
    """One of `DEVICES`, or a torch device such as cuda:1."""
    dtype: str = "auto"
    """One of `DTYPES`; auto is bfloat16 where the device computes in it, else float32."""
    slots: int = 4
    """Requests that can run at once; each has its own row of the KV cache."""
    context: int = 4096
    """Tokens per slot, prompt and reply together; the model's own limit if that is lower."""
    queue: int = 1024
    """Requests that may wait for a slot; one more is refused."""
    prefill_chunk: int = 256
    """A prompt enters the cache in chunks of this many tokens, so that running rows never wait longer than one."""

    exact: bool = False
    """Run the target in passes of fixed shape, so that greedy output is the same bit by bit whatever drafts."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise EngineError(f"dtype {self.dtype!r} is not known: choose one of {', '.join(DTYPES)}")
        for name in ("slots", "context", "queue", "prefill_chunk"):
            if (value := getattr(self, name)) < 1:
                raise EngineError(f"{name.replace('_', ' ')} is {value}: it must be at least 1")
