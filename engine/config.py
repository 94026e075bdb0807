"""Configuration of an engine: models, device, dtype, capacity."""

from __future__ import annotations

import os
from dataclasses import MISSING, dataclass, field
from functools import partial
from math import inf
from pathlib import Path

from specchat.engine.errors import EngineError, check
from specchat.engine.files import local_path
from specchat.engine.settings import MACHINE, MODEL, ONE_OR_MORE, Applies, Rule, check_settings, setting

ASSETS = Path(__file__).resolve().parents[1] / "assets"
SHIPPED_HEADS = ASSETS / "heads"
"""Draft heads in the package."""

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16", "float16")
QUANTIZE = ("auto", "q8", "q4", "none")
CACHE_TYPES = ("f16", "q8")


def home_folder() -> Path | None:
    """The folder that `SPECCHAT_HOME` names; None if it is not set.

    Raises:
        EngineError: it begins with ~ and the name of an unknown user.
    """
    home = os.environ.get("SPECCHAT_HOME")
    try:
        return Path(home).expanduser().absolute() if home else None
    except RuntimeError:
        raise EngineError(f"SPECCHAT_HOME is {home}, and there is no such user: correct it") from None


def models_folder() -> Path:
    """Default folder of downloaded and converted models: in the platform's cache folder, or `SPECCHAT_HOME/models`."""
    if home := home_folder():
        return home / "models"
    try:
        import platformdirs
    except ImportError:  # the engine also runs where only torch, transformers and safetensors are installed
        return Path("~/.cache/specchat/models").expanduser()
    return platformdirs.user_cache_path("specchat", appauthor=False) / "models"


def keep_compiled_code() -> None:
    """Let torch's compiler keep its code where a restart of the machine leaves it: the first compilation takes half a
    minute. It reads this when it compiles first."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(models_folder().parent / "compiled"))


_loaded = partial(setting, applies=Applies.START)
"""A setting of the models or the machine."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Configuration of one engine.

    Raises:
        EngineError: a value is out of range.
    """

    target: str = _loaded(MISSING, "A preset, a hub id, a folder or a GGUF file.", "MODEL", MODEL)
    """A preset, a hub id, a folder of safetensors, or a GGUF file."""
    models: Path = field(default_factory=models_folder)
    """Folder of downloaded and converted models (`engine.models.store`)."""
    draft: str | None = _loaded(
        None,
        "A smaller model that drafts (may be repeated), a draft head, a block drafter, or bigram tables.",
        "MODEL",
        MODEL,
    )
    """A draft model, named like the target, or a draft head or block drafter; several draft models with commas between;
    None for the target's draft head if `heads` has one, else the drafter of a preset."""
    heads: tuple[Path, ...] = (SHIPPED_HEADS,)
    """Folders of draft heads, searched in this order."""
    context: int | None = _loaded(
        None, "Tokens of prompt and reply together; default: as the model and memory allow.", "N", MODEL, ONE_OR_MORE
    )
    """Most tokens of a text, prompt and reply together; limited by the model's context length. None for that, or for
    what the cache can hold if that is less."""
    tokenizer: str | None = _loaded(
        None, "Use this tokenizer and chat template instead of a GGUF file's.", "FOLDER_OR_ID", MODEL
    )
    """Folder, hub id or name of a stored model whose tokenizer, with its chat template, replaces the target's."""
    chat_template: Path | None = _loaded(None, "A file with the chat template to use.", "FILE", MODEL)  # noqa: RUF009
    """File with the chat template of the target; None for its own."""
    slots: int = _loaded(4, "Maximum number of concurrent requests.", "N", MACHINE, ONE_OR_MORE)
    """Maximum number of concurrent requests; each uses one slot of the KV cache."""
    cache_memory: float | None = _loaded(
        None, "Memory of the prefix cache of all chats; default: a quarter of what is free.", "GB", MACHINE,
        Rule("more than 0", lambda x: 0 < x < inf), unit=" GB",
    )  # fmt: skip
    """GB for what was read of all texts, so that it need not be read again; None for a quarter of what is free."""
    cache_type: str = _loaded(
        "f16", "q8 keeps the cache in 8 bits: twice the text in the same memory.", topic=MACHINE, choices=CACHE_TYPES
    )
    """One of `CACHE_TYPES`, of the target's keys and values: 16 bits, or 8 on the packed kernels."""
    dtype: str = _loaded("auto", "auto, float32, bfloat16 or float16.", "TYPE", MACHINE, choices=DTYPES)
    """One of `DTYPES`; auto is bfloat16 if the device supports it, else float32. The others dequantise."""
    quantize: str = _loaded(
        "auto", "8- or 4-bit weights; auto: as in a GGUF file, else 8 bits on the CPU.", topic=MACHINE, choices=QUANTIZE
    )
    """One of `QUANTIZE`: auto keeps the codes of a GGUF file; on a CPU it takes that of a preset, and quantises other
    models to 8 bits where the kernels know them. q8 and q4 quantise; none dequantises."""
    device: str = _loaded("auto", "auto, cpu, cuda, cuda:1, …", "DEVICE", MACHINE)
    """One of `DEVICES`, or a torch device such as cuda:1."""
    queue: int = 1024
    """Maximum number of waiting requests; further ones are refused."""
    seed: int | None = None
    """Seed of the first request that has none, one more for each that follows; None for random ones."""
    prefill_chunk: int = 256
    """Tokens per prefill chunk (`chunk_on`); running requests wait for one chunk between rounds, for two if several
    prompts wait."""
    experience: Path | None = None
    """File that keeps what is learnt of drafters for the next session (`engine.decoding.gamma.acceptance_model`)."""
    kept: Path | None = None
    """Folder of texts whose cache is kept between runs (`engine.cache.kept_texts`), see `Engine.keep_texts`."""
    exact: bool = False
    """Run the target in batch-invariant passes, so that greedy output is identical for all drafters."""

    def __post_init__(self) -> None:
        check_settings(self, space=" ")
        quantized = self.quantize in ("q8", "q4") and self.dtype != "auto"
        told = f"quantize {self.quantize} contradicts dtype {self.dtype}: leave one of them at auto"
        check(not quantized, told)
        for name in ("queue", "prefill_chunk"):
            value = getattr(self, name)
            check(value >= 1, f"{name.replace('_', ' ')} is {value}: it must be at least 1")

    def chunk_on(self, device_type: str) -> int:
        """Tokens per prefill chunk on a device: eight times as many on a GPU, which needs them to be busy.

        On an H200, 8B reads 8,800 tokens/s in chunks of 256, 16,500 in chunks of 1,024, and 25,800 in chunks of 2,048,
        of 79 ms each.
        """
        return self.prefill_chunk * (8 if device_type == "cuda" else 1)

    @property
    def drafts(self) -> tuple[str, ...]:
        """Names of the drafts; an existing path is a single one, even if it contains commas."""
        if not self.draft or local_path(self.draft):
            return (self.draft,) if self.draft else ()
        return tuple(name for part in self.draft.split(",") if (name := part.strip())) or (self.draft,)
