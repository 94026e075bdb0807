"""From a model folder to a network and a tokenizer ready to run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from engine.architecture import first_line, model_config
from engine.checkpoint import Checkpoint
from engine.device import computes_bfloat16, pick_device, require_memory
from engine.errors import EngineError
from engine.footprint import give_back
from engine.library_output import silence_transformers, transformers_bars
from engine.progress import Progress

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

__all__ = ["LoadedModel", "display_name", "load_model", "pick_device", "pick_dtype"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_ROOM = 1.05
"""Loading needs a little more than the weights: the largest tensor once more, the tokenizer."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class LoadedModel:
    """A network on its device, with its tokenizer and what else the engine asks of it."""

    model: PreTrainedModel
    """In eval mode; no parameter asks for gradients."""
    tokenizer: PreTrainedTokenizerFast
    name: str
    """For display."""
    eos_ids: frozenset[int]
    """Tokens that end a reply; empty if the model states none."""
    context: int
    """Positions the network was made for."""
    vocab_size: int
    """Width of the logits, padding included; the tokenizer may know fewer tokens."""
    weight_bytes: int
    has_chat_template: bool


def load_model(
    folder: Path, device: torch.device, dtype: torch.dtype, progress: Progress, stage: str = "target"
) -> LoadedModel:
    """Load the model of a folder. Nothing in the folder is executed, only safetensors are read.

    Args:
        folder: as `engine.resolve.resolve` gives it.
        dtype: the precision of the weights and of the computation.
        stage: what `progress` is told this is, target or draft.

    Raises:
        EngineError: the folder is not a model that can run here, is damaged, or does not fit into memory.
    """
    checkpoint = Checkpoint.open(folder)
    silence_transformers()
    config = model_config(checkpoint)
    name = display_name(folder)
    require_memory(device, int(checkpoint.parameters * dtype.itemsize * _ROOM), f"{name} in {_dtype_name(dtype)}")
    progress(stage, f"Loading {name}", 0.0)
    tokenizer = _load_tokenizer(folder)
    with transformers_bars(lambda fraction: progress(stage, f"Loading {name}", fraction)):
        model = _load_network(folder, config, device, dtype)
    give_back()
    progress(stage, f"Loaded {name}", 1.0)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        name=name,
        eos_ids=_eos_ids(model, tokenizer),
        context=_context(folder, config),
        vocab_size=config.get_text_config().vocab_size,
        weight_bytes=_weight_bytes(model),
        has_chat_template=bool(tokenizer.chat_template),
    )


def pick_dtype(name: str, device: torch.device, folder: Path) -> torch.dtype:
    """The number type for `auto`, `float32`, `bfloat16` or `float16`.

    `auto` is bfloat16 where the device computes in it quickly, else float32. A model stored in float16 stays in it on
    a GPU, which loses nothing and is as fast.

    Raises:
        EngineError: the name is none of these; or as `Checkpoint.open`.
    """
    if name != "auto":
        if name not in _DTYPES:
            raise EngineError(f"dtype {name!r} is not known: choose one of auto, {', '.join(_DTYPES)}")
        return _DTYPES[name]
    if device.type == "cuda" and Checkpoint.open(folder).dtypes == {"F16"}:
        return torch.float16
    return torch.bfloat16 if computes_bfloat16(device) else torch.float32


def display_name(folder: Path) -> str:
    """A model's name for people: without the store's or the hub cache's additions to the folder's name."""
    folder = folder.absolute()
    if folder.parent.name == "snapshots":  # models--organisation--name/snapshots/revision
        folder = folder.parent.parent
    return re.sub(r"-[0-9a-f]{16}$", "", folder.name.rpartition("--")[2])


def _load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        raise EngineError(f"the tokenizer of {folder} cannot be loaded ({first_line(error)})") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise EngineError(
            f"{folder} has no fast tokenizer (tokenizer.json), which streaming needs: choose a model that has one"
        )
    return tokenizer


def _load_network(folder: Path, config: PreTrainedConfig, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    try:
        model, report = auto.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            device_map=None if device.type == "cpu" else {"": device},
            trust_remote_code=False,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    except torch.OutOfMemoryError as error:
        raise EngineError(f"{folder} does not fit into the memory of {device}: choose a smaller model") from error
    except Exception as error:
        raise EngineError(f"{folder} cannot be loaded ({first_line(error)}): fetch the model again") from error
    lacking = sorted(report["missing_keys"])
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise EngineError(f"{folder} lacks weights ({lacking[0]}{more}): fetch the model again")
    network: PreTrainedModel = model.eval().requires_grad_(False)
    return network


def _eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> frozenset[int]:
    stated: list[Any] = [tokenizer.eos_token_id, model.config.get_text_config().eos_token_id]
    if model.generation_config is not None:
        stated.append(model.generation_config.eos_token_id)
    ids: set[int] = set()
    for value in stated:
        if value is not None:
            ids.update([value] if isinstance(value, int) else value)
    return frozenset(ids)


def _context(folder: Path, config: PreTrainedConfig) -> int:
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(context, int) or context < 1:
        raise EngineError(f"{folder / 'config.json'} does not say how long the context is (max_position_embeddings)")
    return context


def _weight_bytes(model: PreTrainedModel) -> int:
    # Tied weights are one parameter under two names; parameters() gives it once.
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
