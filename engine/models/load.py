"""Loading of a model folder: network, tokenizer and the facts about them that the engine needs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from specchat.engine.device.device import computes_bfloat16, pick_device, require_memory
from specchat.engine.device.memory import trim_heap
from specchat.engine.errors import EngineError, first_line
from specchat.engine.models import encoder_decoder
from specchat.engine.models.architecture import model_config
from specchat.engine.models.checkpoint import Checkpoint
from specchat.engine.models.fingerprint import fingerprint
from specchat.engine.models.quiet import silence_transformers, transformers_bars
from specchat.engine.progress import Progress

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

__all__ = ["LoadedModel", "display_name", "load_model", "pick_device", "pick_dtype"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_ROOM = 1.05
"""Peak memory of loading over the size of the weights: a copy of the largest tensor, the tokenizer."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class LoadedModel:
    """A network on its device, its tokenizer and facts about both."""

    model: PreTrainedModel
    """In eval mode; no parameter requires gradients."""
    tokenizer: PreTrainedTokenizerFast
    name: str
    """Display name."""
    eos_ids: frozenset[int]
    """EOS token ids; empty if the model states none."""
    context: int
    """Context length in tokens (max_position_embeddings)."""
    vocab_size: int
    """V: width of the logits, padding included; the tokenizer may know fewer tokens."""
    weight_bytes: int
    has_chat_template: bool
    start: int | None = None
    """Token that replies of an encoder-decoder begin with; None for a decoder-only model."""
    quantized: str | None = None
    """What the weights of its linear layers are stored as, for people, where that is not `dtype`."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights and of what is computed."""
        return self.model.dtype

    @property
    def format(self) -> str:
        """What the weights are stored as, for people: bfloat16."""
        return self.quantized or _dtype_name(self.dtype)

    @property
    def layers(self) -> int:
        """How many there are."""
        return int(self.model.config.get_text_config().num_hidden_layers)

    @property
    def fingerprint(self) -> str:
        """Tells this training from any other (`engine.models.fingerprint`)."""
        return fingerprint(self.model)


def load_model(
    folder: Path, device: torch.device, dtype: torch.dtype, progress: Progress, stage: str = "target"
) -> LoadedModel:
    """Load a model from a folder. No code of the folder is run, and only safetensors weights are read.

    Args:
        folder: as `engine.models.resolve.resolve` returns it.
        dtype: of weights and computation.
        stage: passed to `progress`: target or draft.

    Raises:
        EngineError: the folder is not a supported model, is damaged, or does not fit into memory.
    """
    checkpoint = Checkpoint.open(folder)
    silence_transformers()
    config = model_config(checkpoint)
    name = display_name(folder)
    require_memory(device, int(checkpoint.parameters * dtype.itemsize * _ROOM), f"{name} in {_dtype_name(dtype)}")
    progress(stage, f"Loading {name}", 0.0)
    tokenizer = load_tokenizer(folder)
    if encoder_decoder.is_one(config):
        encoder_decoder.check_loading(folder, config.model_type, tokenizer.chat_template, dtype)
    with transformers_bars(lambda fraction: progress(stage, f"Loading {name}", fraction)):
        model = _load_network(folder, config, device, dtype)
    trim_heap()
    progress(stage, f"Loaded {name}", 1.0)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        name=name,
        eos_ids=eos_ids(tokenizer, model.config.get_text_config(), model.generation_config),
        context=stated_context(folder, config),
        vocab_size=config.get_text_config().vocab_size,
        weight_bytes=_weight_bytes(model),
        has_chat_template=bool(tokenizer.chat_template),
        start=encoder_decoder.start_token(folder, config, model.generation_config),
    )


def pick_dtype(name: str, device: torch.device, folder: Path) -> torch.dtype:
    """The dtype for `auto`, `float32`, `bfloat16` or `float16`.

    `auto` is bfloat16 where the device computes in it quickly, else float32. On a GPU a model stored in float16 stays
    in float16, which loses nothing and is as fast; encoder-decoders cannot compute in it.

    Raises:
        EngineError: unknown name; or as `Checkpoint.open`.
    """
    if name != "auto":
        if name not in _DTYPES:
            raise EngineError(f"dtype {name!r} is not known: choose one of auto, {', '.join(_DTYPES)}")
        return _DTYPES[name]
    if device.type == "cuda":
        checkpoint = Checkpoint.open(folder)
        if checkpoint.dtypes == {"F16"} and checkpoint.config.get("model_type") not in encoder_decoder.KINDS:
            return torch.float16
    return torch.bfloat16 if computes_bfloat16(device) else torch.float32


def display_name(folder: Path) -> str:
    """Display name of a model folder, without what the store or the hub cache adds to it."""
    folder = folder.absolute()
    if folder.parent.name == "snapshots":  # models--organisation--name/snapshots/revision
        folder = folder.parent.parent
    return re.sub(r"-[0-9a-f]{16}$", "", folder.name.rpartition("--")[2])


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The fast tokenizer of a model folder.

    Raises:
        EngineError: it cannot be loaded, or is of another kind.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        tokenizer("some words")  # settings of the wrong type are found with the first text only
    except Exception as error:
        raise EngineError(f"the tokenizer of {folder} cannot be loaded ({first_line(error)})") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise EngineError(
            f"{folder} has no fast tokenizer (tokenizer.json), which streaming needs: choose a model that has one"
        )
    return tokenizer


def _load_network(folder: Path, config: PreTrainedConfig, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    auto: Any = AutoModelForSeq2SeqLM if encoder_decoder.is_one(config) else AutoModelForCausalLM
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


def eos_ids(tokenizer: Any, config: Any, generation: Any) -> frozenset[int]:
    """Tokens that end a reply, as the tokenizer, the configuration and the generation settings (None if none) say."""
    stated = [part.eos_token_id for part in (tokenizer, config, generation) if part is not None]
    ids: set[int] = set()
    for value in stated:
        if value is not None:
            ids.update(value if isinstance(value, list | tuple | set) else [value])
    if not all(isinstance(token, int) for token in ids):
        raise EngineError("the model names an eos_token_id that is no token id: fetch the model again")
    return frozenset(ids)


def stated_context(folder: Path, config: PreTrainedConfig) -> int:
    """Positions the network was made for.

    Raises:
        EngineError: the configuration does not say.
    """
    if encoder_decoder.is_one(config):
        return encoder_decoder.stated_context(config)
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(context, int) or context < 1:
        raise EngineError(f"{folder / 'config.json'} does not say how long the context is (max_position_embeddings)")
    return context


def _weight_bytes(model: PreTrainedModel) -> int:
    # Tied weights are one parameter under two names; parameters() gives it once.
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
