"""Loading of a model folder: network, tokenizer and facts about them; engines of one process share loaded models."""

from __future__ import annotations

import hashlib
import re
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from specchat.engine.device.device import computes_bfloat16, require_memory, trim_heap
from specchat.engine.errors import EngineError, check, errors_as, first_line
from specchat.engine.models.catalog import FILE as GENERATION
from specchat.engine.models.catalog import Recommendation, recommended_sampling
from specchat.engine.models.checkpoint import TEXT_PART, Checkpoint, display_name, read_json, tensor_names, text_name
from specchat.engine.models.families import family_of
from specchat.engine.models.linear_layers import pack
from specchat.engine.models.model_config import auto_class, model_config, read_config
from specchat.engine.models.tokenizer import FILE as TOKENIZER
from specchat.engine.models.tokenizer import PlainTokenizer, check_components, tokenizer_facts
from specchat.engine.progress import Progress, silence_transformers, transformers_bars
from specchat.engine.sequence.template import default_template

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_ROOM = 1.05
"""Peak memory of loading over the size of the weights: a copy of the largest tensor, the tokenizer."""
_FINGERPRINT_SAMPLES = 64
"""Weights sampled per tensor: enough to distinguish two trainings at negligible cost."""
_PROCESSOR_FILES = ("chat_template.json", "processor_config.json")
"""Files with the template of a model that reads images too, where its tokenizer has none."""
_fingerprints: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_shared: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()
_lock = threading.Lock()
_Model = TypeVar("_Model")


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class LoadedModel:
    """A network on its device, its tokenizer and facts about both."""

    model: PreTrainedModel
    """The network in evaluation mode; no parameter requires gradients."""
    tokenizer: PlainTokenizer
    name: str
    """Display name."""
    eos_ids: frozenset[int]
    """Tokens that end a reply; empty if none is known."""
    context: int
    """Context length in tokens (max_position_embeddings)."""
    vocab_size: int
    """V: width of the logits, padding included; the tokenizer may have fewer tokens."""
    weight_bytes: int
    start: int | None = None
    """First token of replies of an encoder-decoder; None for a decoder-only model."""
    backend: str = "specchat.engine.backends.transformers_backend"
    """Module whose `build` makes its backend."""
    quantized: str | None = None
    """Display name of the format of its linear layers, if that is not `dtype`."""
    recommended: Recommendation = field(default_factory=Recommendation)
    """Sampling settings that its authors recommend."""

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of weights and computation."""
        return self.model.dtype

    @property
    def format(self) -> str:
        """Display name of the format of the weights: bfloat16."""
        return self.quantized or _dtype_name(self.dtype)

    @property
    def layers(self) -> int:
        """Number of layers."""
        return int(self.model.config.get_text_config().num_hidden_layers)

    @property
    def fingerprint(self) -> str:
        """Identifies the weights, whatever their precision (`fingerprint`)."""
        return fingerprint(self.model)

    @property
    def norms(self) -> str:
        """Identifies the model, whatever codes its weights have (`norms_fingerprint`)."""
        return norms_fingerprint(self.model.state_dict().items())


def load_model(
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
    progress: Progress,
    stage: str = "target",
    source: Any = None,
) -> LoadedModel:
    """Load a model from a folder. No code of the folder is run, and only safetensors weights are read.

    Args:
        folder: result of `engine.models.resolve.resolve`.
        dtype: of weights and computation.
        stage: for `progress`: target or draft.
        source: a `GgufSource` that weights will come from; parameters are then on the meta device, and the folder needs
            no weights.

    Raises:
        EngineError: the folder is not a supported model, is damaged, or does not fit into memory.
    """
    checkpoint = Checkpoint.open(folder, source.header.parameters if source else 0)
    silence_transformers()
    config = model_config(checkpoint)
    name = display_name(folder)
    size = source.header.bytes if source else checkpoint.parameters * dtype.itemsize
    require_memory(device, int(size * _ROOM), f"{name} in {source.format if source else _dtype_name(dtype)}")
    progress(stage, f"Loading {name}", 0.0)
    tokenizer = load_tokenizer(folder)
    tokenizer.rows = config.get_text_config().vocab_size
    with transformers_bars(lambda fraction: progress(stage, f"Loading {name}", fraction)):
        model = source.network() if source else _load_network(folder, config, device, dtype)
    if source:
        _fingerprints[model] = source.fingerprint()
    trim_heap()
    progress(stage, f"Loaded {name}", 1.0)
    family = family_of(config.model_type)
    described = (
        family.describe(folder, model, tokenizer.chat_template)
        if family and family.describe
        else {"context": stated_context(folder, config)}
    )
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        name=name,
        eos_ids=eos_ids(folder, tokenizer, config),
        vocab_size=config.get_text_config().vocab_size,
        weight_bytes=weight_bytes(model),
        recommended=recommended_sampling(folder),
        **described,
    )


def shared_model(
    folder: Path, device: torch.device, dtype: torch.dtype, progress: Progress, stage: str = "target"
) -> LoadedModel:
    """Load a model with prepacked linear layers, or return the loaded one while it is in use.

    Arguments and errors as for `load_model`. Thread-safe.
    """

    def load() -> LoadedModel:
        plain = load_model(folder, device, dtype, progress, stage)
        fingerprint(plain.model)  # before packing replaces the weights
        pack(plain.model)
        model = replace(plain, weight_bytes=weight_bytes(plain.model))
        trim_heap()
        return model

    return shared((folder.resolve(), str(device), str(dtype)), load)


def shared(key: Hashable, load: Callable[[], _Model]) -> _Model:
    """The model that was loaded for this key, while it is in use; else the result of `load`. Thread-safe."""
    with _lock:
        model: _Model | None = _shared.get(key)
        if model is None:
            model = _shared[key] = load()
    return model


def held(layer: Any) -> tuple[object, int]:
    """Object that holds the weight of a linear layer or embedding, which two layers can share, and its bytes."""
    if hasattr(layer, "bytes"):  # packed or quantised
        return getattr(layer, "matrix", layer), layer.bytes
    return layer.weight, layer.weight.nbytes


def weight_bytes(network: nn.Module) -> int:
    """Bytes of all weights. A shared one counts once, but twice if it is packed and something else uses it too."""
    packed = dict(held(module) for module in network.modules() if hasattr(module, "bytes"))
    return sum(packed.values()) + sum(parameter.nbytes for parameter in network.parameters())


def fingerprint(model: Any) -> str:
    """SHA-256, in hexadecimal, over names, shapes and evenly spaced weights (as bfloat16) of a network.

    It is computed once per network object, so replacing layers later does not change it.
    """
    if model not in _fingerprints:
        _fingerprints[model] = fingerprint_of(
            (name, tuple(weight.shape), weight.detach().flatten()[sampled(weight.numel())])
            for name, weight in model.state_dict().items()
        )
    return _fingerprints[model]


def fingerprint_of(tensors: Iterable[tuple[str, tuple[int, ...], Tensor]]) -> str:
    """`fingerprint` from name, shape and sampled weights (`sampled`) of every tensor of a network's state."""
    digest = hashlib.sha256()
    for name, shape, weights in sorted(tensors, key=lambda tensor: tensor[0]):
        digest.update(f"{name} {shape}".encode())
        digest.update(weights.to(torch.bfloat16).cpu().view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


def norms_fingerprint(weights: Iterable[tuple[str, Tensor]]) -> str:
    """Hash of a model's norms, which stay the same when it is quantised; empty if they are not trained."""
    norms = [(name, weight.flatten()) for name, weight in weights if "norm" in name]
    norms = [(name, norm) for name, norm in norms if bool((norm != norm[:1]).any())]
    return fingerprint_of((name, tuple(norm.shape), norm[sampled(len(norm))]) for name, norm in norms) if norms else ""


def sampled(size: int) -> slice:
    """The sampled weights of a flat tensor."""
    step = max(size // _FINGERPRINT_SAMPLES, 1)
    return slice(0, min(step * _FINGERPRINT_SAMPLES, size), step)


def pick_dtype(name: str, device: torch.device, folder: Path) -> torch.dtype:
    """The dtype for `auto`, `float32`, `bfloat16` or `float16`.

    `auto` is bfloat16 if the device supports it natively, else float32. On a GPU a model stored in float16 stays in
    float16, which loses nothing and is as fast; without bfloat16 others compute in it too, but for kinds of models
    whose numbers overflow in it.

    Raises:
        EngineError: unknown name; or as for `Checkpoint.open`.
    """
    if name != "auto":
        check(name in _DTYPES, f"dtype {name!r} is not known: choose one of auto, {', '.join(_DTYPES)}")
        return _DTYPES[name]
    if device.type == "cuda":
        checkpoint = Checkpoint.open(folder)
        family, half = family_of(checkpoint.config.get("model_type")), checkpoint.dtypes == {"F16"}
        overflows = family is not None and family.overflows and (family.describe is not None or not half)
        if not overflows and (half or not computes_bfloat16(device)):
            return torch.float16
    return torch.bfloat16 if computes_bfloat16(device) else torch.float32


def load_tokenizer(folder: Path) -> PlainTokenizer:
    """The tokenizer of a model folder.

    Raises:
        EngineError: it cannot be loaded, or is not a fast tokenizer.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if (folder / TOKENIZER).is_file():
        check_components(folder / TOKENIZER)
    config = None
    if (folder / "config.json").is_file():  # by which transformers chooses a class
        with suppress(EngineError):
            config = read_config(folder)
    with errors_as(lambda error: f"the tokenizer of {folder} cannot be loaded ({first_line(error)})"):
        tokenizer = AutoTokenizer.from_pretrained(folder, config=config, trust_remote_code=False, local_files_only=True)
        tokenizer("some words")  # settings of the wrong type raise only here
    told = f"{folder} has no fast tokenizer (tokenizer.json), which streaming needs: choose a model that has one"
    check(isinstance(tokenizer, PreTrainedTokenizerFast), told)
    facts = tokenizer_facts(tokenizer)
    for file in (folder / name for name in _PROCESSOR_FILES if not facts["chat_template"]):
        if file.is_file():
            facts["chat_template"] = default_template(read_json(file).get("chat_template")) or None
    return PlainTokenizer(tokenizer.backend_tokenizer, facts)


def _load_network(folder: Path, config: PreTrainedConfig, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    auto, text, renamed = auto_class(config), config.get_text_config(), None
    networks = {AutoModelForCausalLM._model_mapping.get(type(text), None), auto._model_mapping.get(type(config), None)}
    is_usual = auto is AutoModelForCausalLM or family_of(text.model_type) is not None  # others may scale logits
    if is_usual and len(networks - {None}) > 1 and any(name != text_name(name) for name in tensor_names(folder)):
        auto, config, renamed = AutoModelForCausalLM, text, TEXT_PART
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
            ignore_mismatched_sizes=True,
            key_mapping=renamed,
        )
    except torch.OutOfMemoryError as error:
        raise EngineError(f"{folder} does not fit into the memory of {device}: choose a smaller model") from error
    except Exception as error:
        raise EngineError(f"{folder} cannot be loaded ({first_line(error)}): fetch the model again") from error
    for name, stored, stated in sorted(report["mismatched_keys"]):
        raise EngineError(
            f"{folder} has {name} of shape {list(stored)}, and its config.json asks for {list(stated)}: fetch it again"
        )
    biases = {name for name in report["missing_keys"] if name.endswith("_proj.bias")}
    lacking = sorted(report["missing_keys"] - biases)
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise EngineError(f"{folder} lacks weights ({lacking[0]}{more}): fetch the model again")
    if unread := _unread_bias(report["unexpected_keys"], config):
        raise EngineError(
            f"{folder} has {unread}, for which a network of type {config.model_type} has no place: use another model"
        )
    for name in biases:  # optional, as in llama.cpp
        nn.init.zeros_(model.get_parameter(name))
    if not config.is_encoder_decoder and "lm_head.weight" not in model.all_tied_weights_keys:
        model.config.tie_word_embeddings = False  # it may be stated of an output layer with separate weights
    if auto is AutoModelForImageTextToText:
        _drop_encoders(model)
    network: PreTrainedModel = model.eval().requires_grad_(False)
    return network


def _unread_bias(names: Iterable[str], config: PreTrainedConfig) -> str | None:
    """A bias of a layer among the weights that a network has no place for; later layers predict further tokens."""
    layers = getattr(config.get_text_config(), "num_hidden_layers", 0)
    found = map(re.compile(r"model\.layers\.(\d+)\..*_proj\.bias").fullmatch, sorted(names))
    return next((name[0] for name in found if name and int(name[1]) < layers), None)


def _drop_encoders(model: PreTrainedModel) -> None:
    """Free the encoders of images and sound of a model, which reads text only here."""
    for modality in ("image", "audio"):
        if model.get_encoder(modality=modality) not in (model, model.base_model):
            model.set_encoder(nn.Identity(), modality=modality)


def eos_ids(folder: Path, tokenizer: PlainTokenizer, config: PreTrainedConfig) -> frozenset[int]:
    """Tokens that end a reply: stated by tokenizer, configuration or generation settings, or known by their text.

    Raises:
        EngineError: as for `stated_ends`.
    """
    text = config.get_text_config()
    return tokenizer.end_ids(stated_ends(folder, tokenizer, config, text), text.vocab_size)


def stated_ends(folder: Path, *parts: Any) -> set[int]:
    """End tokens that a folder's generation settings state, and these parts as `eos_token_id`.

    Raises:
        EngineError: one is no token id, or the generation settings cannot be read.
    """
    stated = [getattr(part, "eos_token_id", None) for part in parts]
    if (folder / GENERATION).is_file():
        stated.append(read_json(folder / GENERATION).get("eos_token_id"))
    ids: set[int] = set()
    for value in stated:
        if value is not None:
            ids.update(value if isinstance(value, list | tuple | set) else [value])
    if not all(isinstance(token, int) for token in ids):
        raise EngineError("the model names an eos_token_id that is not a token id: fetch the model again")
    return ids


def stated_context(folder: Path, config: PreTrainedConfig) -> int:
    """Context length of a model in tokens.

    Raises:
        EngineError: the configuration does not state it.
    """
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(context, int) or context < 1:
        raise EngineError(f"{folder / 'config.json'} does not say how long the context is (max_position_embeddings)")
    return context


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
