"""Checks of a model folder before it is loaded: files, safetensors headers, and the architecture. Needs no torch."""

from __future__ import annotations

import inspect
import json
import math
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specchat.engine.errors import EngineError, check, errors_as, first_line
from specchat.engine.models.cache_argument import cache_argument
from specchat.engine.models.keys import FLAG, LARGEST, TABLE, TEXT, TOKEN, Kind, a_list, check_values, number, whole

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")
RECURRENT_LAYERS = {"linear_attention", "conv", "hybrid"}
"""Layer types with recurrent states (`engine.cache.recurrent_states`)."""
_ROLLBACK_LAYERS = {"full_attention", "sliding_attention", "chunked_attention", "moe", "mlp", *RECURRENT_LAYERS}
"""Layer types whose drafted tokens can be taken back."""
_MXFP4 = "mxfp4"
"""The only quantisation of safetensors that is read: the published experts of gpt-oss, two weights in a byte."""
MTP = "mtp."
"""Beginning of the names of multi-token-prediction layers."""
MTP_FILE = "mtp.safetensors"
"""The multi-token-prediction layer of a model that came as a GGUF file."""
TEXT_PART = "model.language_model."
"""Beginning of the names of the text part's weights where a model reads images too."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checked model folder: config, weights and tokenizer exist, and the weight files are complete."""

    folder: Path
    config: dict[str, Any]
    """Content of config.json."""
    parameters: int
    """Number of weights."""
    dtypes: frozenset[str]
    """Dtypes of the weights, by safetensors' names (BF16, F32 …)."""
    names: frozenset[str] = frozenset()
    """Names of the weights in the folder."""

    @classmethod
    def open(cls, folder: Path, elsewhere: int = 0) -> Checkpoint:
        """Read config.json and the headers of the weight files.

        Args:
            folder: of the model.
            elsewhere: number of weights if they are not in the folder but in a GGUF file.

        Raises:
            EngineError: the folder does not exist or is not a model, or one of its files is damaged.
        """
        check(folder.is_dir(), f"there is no folder {folder}: give a folder that holds a model's config.json")
        config = _read_config(folder)
        parameters, dtypes, names = elsewhere, set[str](), set[str]()
        for shard in [] if elsewhere else weight_files(folder):
            count, kinds, own = _read_header(shard)
            parameters += count
            dtypes |= kinds
            names |= own
        if not any((folder / name).is_file() for name in _TOKENIZERS):
            raise EngineError(
                f"{folder} has no tokenizer (tokenizer.json): copy the tokenizer files of the model there"
            )
        _check_config(folder / "config.json", config, parameters)
        return cls(folder, config, parameters, frozenset(dtypes), frozenset(names))


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        if (folder / "adapter_config.json").is_file():
            raise EngineError(f"{folder} holds an adapter, not a model: merge it into its base model first")
        ggufs = sorted(folder.glob("*.gguf"))
        hint = f"; to use its GGUF file, give {ggufs[0]}" if ggufs else ""
        raise EngineError(f"{folder} is not a model: it has no config.json{hint}")
    return read_json(path)


def _check_config(path: Path, config: dict[str, Any], parameters: int) -> None:
    """Check the types of the values read from a configuration; no size may exceed the number of weights.

    Raises:
        EngineError: a value is of another type or range.
    """
    size, count = whole(1, parameters or LARGEST), whole(0)
    rope = {"rope_type|type": TEXT, "rope_theta": number(1), r"\w*factor|beta_\w+": number() | a_list(number())}
    kinds: dict[str, Kind] = {
        r"(text_|quantization_)config|rope_parameters|rope_scaling": TABLE,
        r"model_type|\w*hidden_act\w*|torch_dtype|dtype": TEXT,
        r"architectures|layer_types": a_list(TEXT, filled=True),
        r"num_(hidden_|decoder_)?layers|n_layers?|num_(attention_)?heads|n_heads?|head_dim|d_model|d_kv": size,
        r"hidden_size|n_embd|vocab_size|(moe_)?intermediate_size|d_ff|num_key_value_heads": size
        | a_list(count, filled=True),
        r"max_position_embeddings|n_positions": whole(1),
        r"\w*sliding_window|num_\w*experts\w*|num_kv_shared_layers": count | FLAG | a_list(count),
        r"\w*(norm_eps|epsilon)|\w*_softcapping|rope_theta|partial_rotary_factor|query_pre_attn_scalar": number(0),
        r"tie_word_embeddings|attention_bias|mlp_bias|is_encoder_decoder": FLAG,
        r"(eos|bos|pad)_token_id": TOKEN | a_list(TOKEN),
    }
    for table in (config, config.get("text_config")):
        if isinstance(table, dict):
            stated = {key: value for key, value in table.items() if value is not None}
            check_values(path, stated, kinds)
            heads, shared = stated.get("num_attention_heads", 0), stated.get("num_key_value_heads", 1)
            if isinstance(heads, int) and isinstance(shared, int) and heads % shared:
                raise EngineError(
                    f"{path} states num_attention_heads {heads}, which is no multiple of num_key_value_heads {shared}: "
                    "fetch it again"
                )
            for scaling in (stated.get("rope_parameters"), stated.get("rope_scaling")):
                check_values(path, scaling or {}, rope)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file of a model.

    Raises:
        EngineError: the file cannot be read, or is not a JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise EngineError(f"{path} cannot be read ({error}): fetch the model again") from error
    if not isinstance(content, dict):
        raise EngineError(f"{path} holds no JSON object: fetch the model again")
    return content


def has_weights(folder: Path) -> bool:
    """Whether a model folder has weights besides its configuration and tokenizer."""
    return any(folder.glob("model*.safetensors"))


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder.

    Raises:
        EngineError: there are none, or one is missing.
    """
    if (folder / _SINGLE).is_file():  # as transformers does
        return [folder / _SINGLE]
    if (folder / _INDEX).is_file():
        weight_map = read_json(folder / _INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise EngineError(f"{folder / _INDEX} names no weights, so the model is not complete: fetch it again")
        names = sorted(set(map(str, weight_map.values())))
        for name in names:
            if not _is_inside(folder, name):
                raise EngineError(
                    f"{folder / _INDEX} names a file outside of its folder ({name}): fetch the model again"
                )
        lacking = [name for name in names if not (folder / name).is_file()]
        if lacking:
            raise EngineError(f"{folder} lacks {lacking[0]}, so the model is not complete: fetch it again")
        return [folder / name for name in names]
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth")):
        raise EngineError(
            f"{folder} has pickled weights only, which can run code when they are loaded: "
            "convert them to safetensors, or choose a model that has them"
        )
    raise EngineError(f"{folder} has no weights ({_SINGLE}): fetch the model again")


def _is_inside(folder: Path, name: str) -> bool:
    """Whether the file of this name is in the folder; in the hub's cache it is a link to one next to the folder."""
    roots = [folder.resolve()]
    if roots[0].parent.name == "snapshots":
        roots.append(roots[0].parents[1] / "blobs")
    # An absolute path replaces the folder.
    inside = (folder / name).absolute().is_relative_to(folder.absolute()) and ".." not in Path(name).parts
    return inside and any((folder / name).resolve().is_relative_to(root) for root in roots)


def is_finite(weight: Tensor) -> bool:
    """Whether all values are finite; the extremes take a fiftieth of the time of `torch.isfinite`, and no copy."""
    return weight.numel() == 0 or all(bool(extreme.isfinite()) for extreme in weight.aminmax())


def tensor_names(folder: Path) -> list[str]:
    """Names of all weights of a model folder."""
    from safetensors import safe_open

    names: list[str] = []
    for file in weight_files(folder):
        with safe_open(file, framework="numpy") as opened:
            names += opened.keys()
    return names


def _read_header(file: Path) -> tuple[int, set[str], set[str]]:
    """Number, dtypes and names of the weights in a safetensors file; its header is checked against the file size."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as opened:
            tensors = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 the file is no mapping
            sizes = (math.prod(each.get_shape()) * (1 + name.endswith("_blocks")) for name, each in tensors.items())
            return sum(sizes), {tensor.get_dtype() for tensor in tensors.values()}, set(tensors)
    except (SafetensorError, OSError) as error:
        reason = first_line(error).removeprefix("Error while deserializing header: ")
        raise EngineError(f"{file} is damaged or cut short ({reason}): fetch the model again") from error


def model_config(checkpoint: Checkpoint) -> PreTrainedConfig:
    """Load a checkpoint's transformers config and check its architecture. No code of the folder is run.

    Raises:
        EngineError: the model does not generate text, needs its own code, is quantised, or has state other than a KV
            cache.
    """
    from transformers import CONFIG_MAPPING, AutoConfig

    allow_any_heads()
    folder, raw = checkpoint.folder, checkpoint.config
    kind = raw.get("model_type")
    if kind not in CONFIG_MAPPING:
        if "auto_map" in raw:
            auto_map = raw["auto_map"]
            first = next(iter(auto_map.values()), "auto_map") if isinstance(auto_map, dict) else "auto_map"
            raise EngineError(
                f"{folder} brings its own code ({first}), which specchat never runs: "
                "choose a model that transformers knows"
            )
        stated = f"of type {kind!r}, which the installed transformers does not know" if kind else "without a model_type"
        raise EngineError(f"{folder} is a model {stated}: upgrade transformers or choose another model")
    quantised = raw.get("quantization_config")
    method = quantised.get("quant_method", "an unnamed method") if quantised else _MXFP4
    if method != _MXFP4:
        raise EngineError(
            f"{folder} is quantised with {method}, which is not supported: give the unquantised model, or a GGUF file"
        )
    with errors_as(lambda error: f"{folder / 'config.json'} is not a valid {kind} configuration ({first_line(error)})"):
        # transformers knows the type, so an auto_map is ignored.
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    _add_biases(checkpoint, config)
    _check_rope(folder, config)
    if quantised:  # transformers' own kernels for it would be downloaded
        config.quantization_config["dequantize"] = True
    if kind == "llama":  # one that was made from a Mistral or Qwen may state a window, which Llama's code ignores
        config.sliding_window = None
    _check_network(checkpoint, config)
    _check_depth(checkpoint, config)
    return config


def allow_any_heads() -> None:
    """Let a Llama have any number of heads: transformers refuses numbers that do not divide the hidden size."""
    from transformers import LlamaConfig

    known: Any = LlamaConfig
    checks = known.__class_validators__
    known.__class_validators__ = [each for each in checks if each.__name__ != "validate_architecture"]


def _add_biases(checkpoint: Checkpoint, config: PreTrainedConfig) -> None:
    """Let the network have biases wherever the files have some, as llama.cpp does; the others are zero."""
    text = config.get_text_config()
    for part, flag in {"self_attn": "attention_bias", "mlp": "mlp_bias"}.items():
        if hasattr(text, flag) and any(name.endswith(".bias") and f".{part}." in name for name in checkpoint.names):
            setattr(text, flag, True)


def _check_rope(folder: Path, config: PreTrainedConfig) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    stated = getattr(config.get_text_config(), "rope_parameters", None) or {}
    for each in (stated, *stated.values()):  # a table, or one for each type of layers
        kind = each.get("rope_type", "default") if isinstance(each, dict) else "default"
        if kind not in ("default", *ROPE_INIT_FUNCTIONS):
            raise EngineError(
                f"{folder / 'config.json'} states rope_type {kind!r}, which the installed transformers does not know: "
                "upgrade transformers or choose another model"
            )


def _check_depth(checkpoint: Checkpoint, config: PreTrainedConfig) -> None:
    """Refuse a configuration with more layers than weights: transformers would create them all before it fails."""
    text, folder = config.get_text_config(), checkpoint.folder
    layers, hidden = getattr(text, "num_hidden_layers", None), getattr(text, "hidden_size", None)
    if isinstance(layers, int):
        layers += getattr(text, "num_decoder_layers", 0)
    # Each layer has at least one norm of this size.
    if isinstance(layers, int) and isinstance(hidden, int) and layers * hidden > checkpoint.parameters:
        raise EngineError(
            f"{folder / 'config.json'} states {layers} layers of width {hidden}, for which {folder} has too few "
            "weights: fetch the model again"
        )


def _check_network(checkpoint: Checkpoint, config: PreTrainedConfig) -> None:
    from transformers import AutoModelForCausalLM

    from specchat.engine.models import encoder_decoder

    folder, kind = checkpoint.folder, config.model_type
    if kind in encoder_decoder.MODULES and config.is_encoder_decoder:
        import_module(encoder_decoder.MODULES[kind]).check_network(folder, checkpoint.config.get("architectures"))
        return
    if type(config) not in AutoModelForCausalLM._model_mapping or config.is_encoder_decoder:
        raise EngineError(
            f"{folder} is a {kind} model, which does not continue text: choose a decoder-only language model "
            f"or one of these encoder-decoders: {', '.join(encoder_decoder.MODULES)}"
        )
    registered: Any = AutoModelForCausalLM._model_mapping[type(config)]
    # Some types are registered with several networks; transformers builds the first by default.
    network: type[PreTrainedModel] = registered[0] if isinstance(registered, tuple) else registered
    stated = (checkpoint.config.get("architectures") or [network.__name__])[0]
    # Of a model that reads images too, the text part runs, where transformers has a network for it.
    text_part = stated.replace("ForConditionalGeneration", "ForCausalLM")
    if not stated.endswith(("ForCausalLM", "LMHeadModel")) and network.__name__ not in (stated, text_part):
        raise EngineError(f"{folder} is a {stated}, which does not continue text: choose a causal language model")
    if _counts_from_padding(network):
        raise EngineError(
            f"{folder} is a {kind} model, which counts positions from its padding token and not from 0: "
            "choose another decoder-only language model"
        )
    refusal = _unsupported_state(network, config)
    if refusal:
        raise EngineError(
            f"{folder} is a {kind} model, whose {refusal}, so drafted tokens cannot be taken back: choose another model"
        )


def _counts_from_padding(network: type[PreTrainedModel]) -> bool:
    """Whether positions are counted as in RoBERTa: the first one is the padding token's id plus one."""
    parts = vars(inspect.getmodule(network)).values()
    return any(inspect.isclass(part) and hasattr(part, "create_position_ids_from_input_ids") for part in parts)


def _unsupported_state(network: type[PreTrainedModel], config: PreTrainedConfig) -> str | None:
    text = config.get_text_config()
    others = sorted(set(getattr(text, "layer_types", None) or ()) - _ROLLBACK_LAYERS)
    if others:
        return f"layers are of an unknown type ({', '.join(others)})"
    if network._is_stateful and not getattr(text, "layer_types", None):
        return "layers keep a recurrent state"
    needed = {"attention_mask", "position_ids", cache_argument(network.forward)}
    lacking = needed - set(inspect.signature(network.forward).parameters)
    if lacking or getattr(text, "alibi", False):
        return "cache is not indexed by token position"
    return None
