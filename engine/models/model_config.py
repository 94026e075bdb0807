"""Configuration of transformers for a checked model folder, whether its architecture is supported, and its cache."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specchat.engine.errors import EngineError, check, errors_as
from specchat.engine.models.checkpoint import Checkpoint, read_json
from specchat.engine.models.families import families, family_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


RECURRENT_LAYERS = {"linear_attention", "conv", "hybrid"}
"""Layer types with recurrent states (`engine.cache.recurrent_states`)."""
_ROLLBACK_LAYERS = {"full_attention", "sliding_attention", "chunked_attention", "moe", "mlp", *RECURRENT_LAYERS}
"""Layer types whose drafted tokens can be taken back."""
OTHER_WAYS = "choose another model, or run it in another server and give that server's address with --attach"
"""What to do with a model that cannot run here."""
_MXFP4 = "mxfp4"
"""The only quantisation of safetensors that is read: the published experts of gpt-oss, two weights in a byte."""


def model_config(checkpoint: Checkpoint) -> PreTrainedConfig:
    """Load a checkpoint's transformers config and check its architecture. No code of the folder is run.

    Raises:
        EngineError: the model does not generate text, needs its own code, is quantised, or has state other than a KV
            cache.
    """
    from transformers import CONFIG_MAPPING

    allow_any_heads()
    folder, raw = checkpoint.folder, checkpoint.config
    kind = raw.get("model_type")
    family = family_of(kind)
    if kind not in CONFIG_MAPPING:
        if "auto_map" in raw:
            auto_map = raw["auto_map"]
            first = next(iter(auto_map.values()), "auto_map") if isinstance(auto_map, dict) else "auto_map"
            raise EngineError(f"{folder} brings its own code ({first}), which specchat never runs: {OTHER_WAYS}")
        stated = f"of type {kind!r}, which the installed transformers does not know" if kind else "without a model_type"
        raise EngineError(f"{folder} is a model {stated}: upgrade transformers, {OTHER_WAYS}")
    quantised = raw.get("quantization_config")
    method = quantised.get("quant_method") or quantised.get("quant_algo", "an unnamed method") if quantised else _MXFP4
    if method != _MXFP4:
        raise EngineError(
            f"{folder} is quantised with {method}, which is not supported: take the unquantised model or a GGUF file, "
            f"{OTHER_WAYS}"
        )
    config = read_config(folder)
    _add_biases(checkpoint, config)
    _tie(checkpoint, config)
    _check_rope(folder, config)
    if quantised:  # transformers' own kernels for it would be downloaded
        config.quantization_config["dequantize"] = True
    elif hasattr(config, "quantization_config"):
        del config.quantization_config
    for setting in family.ignored if family else ():
        setattr(config, setting, None)
    _check_network(checkpoint, config)
    _check_depth(checkpoint, config)
    return config


def read_config(folder: Path) -> PreTrainedConfig:
    """Configuration that the config.json of a folder states; null where its type has no null is as good as nothing.

    Raises:
        EngineError: it is not valid.
    """
    from huggingface_hub.errors import StrictDataclassFieldValidationError
    from transformers import AutoConfig

    path = folder / "config.json"
    raw = read_json(path)
    config: PreTrainedConfig
    with errors_as(
        lambda error: (
            f"{path} is not a valid {raw.get('model_type')} configuration ({_in_a_line(error)}): fetch it again"
        )
    ):
        try:
            # transformers knows the type, so an auto_map is ignored.
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        except StrictDataclassFieldValidationError as error:
            config = _without_nulls(raw, error)
    return config


def _without_nulls(raw: dict[str, Any], refusal: Exception) -> PreTrainedConfig:
    """Configuration without the field that transformers refuses, if it is null."""
    from huggingface_hub.errors import StrictDataclassFieldValidationError
    from transformers import AutoConfig

    name = str(refusal).split("'")[1]
    tables = [table for table in (raw, *raw.values()) if isinstance(table, dict)]
    if not (nulls := [table for table in tables if name in table and table[name] is None]):
        raise refusal
    for table in nulls:
        del table[name]
    try:
        config: PreTrainedConfig = AutoConfig.for_model(**raw)
        return config
    except StrictDataclassFieldValidationError as error:
        return _without_nulls(raw, error)


def _in_a_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _tie(checkpoint: Checkpoint, config: PreTrainedConfig) -> None:
    """Let the output layer share the embedding's weights where the files have none for it, unless config.json states
    otherwise of the text model."""
    text, names = config.get_text_config(), checkpoint.names
    unstated = text is not config or checkpoint.config.get("tie_word_embeddings") is None
    if unstated and names and not any(name.endswith(("lm_head.weight", "embed_out.weight")) for name in names):
        text.tie_word_embeddings = True


def allow_any_heads() -> None:
    """Let a Llama have any number of heads: transformers refuses numbers that do not divide the hidden size."""
    from transformers import LlamaConfig

    known: Any = LlamaConfig
    checks = known.__class_validators__
    known.__class_validators__ = [each for each in checks if each.__name__ != "validate_architecture"]


def _add_biases(checkpoint: Checkpoint, config: PreTrainedConfig) -> None:
    """Let the network have biases wherever the files have some, as llama.cpp does; the others are zero."""
    text, biases = config.get_text_config(), [name for name in checkpoint.names if name.endswith("_proj.bias")]
    for part, flag in {"self_attn": "attention_bias", "mlp": "mlp_bias"}.items():
        if hasattr(text, flag) and any(f".{part}." in name for name in biases):
            setattr(text, flag, True)


def _check_rope(folder: Path, config: PreTrainedConfig) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    stated = getattr(config.get_text_config(), "rope_parameters", None) or {}
    for each in (stated, *stated.values()):  # a table, or one for each type of layers
        kind = each.get("rope_type", "default") if isinstance(each, dict) else "default"
        if kind not in ("default", *ROPE_INIT_FUNCTIONS):
            raise EngineError(
                f"{folder / 'config.json'} states rope_type {kind!r}, which the installed transformers does not know: "
                f"upgrade transformers, {OTHER_WAYS}"
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


def auto_class(config: PreTrainedConfig) -> Any:
    """The class of transformers that makes the network of a configuration.

    Of a model that reads images too it makes a network of text, where transformers has one; else the whole.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForSeq2SeqLM

    if config.is_encoder_decoder:
        return AutoModelForSeq2SeqLM
    autos = (AutoModelForCausalLM, AutoModelForImageTextToText)
    return next((auto for auto in autos if type(config) in auto._model_mapping), AutoModelForCausalLM)


def _check_network(checkpoint: Checkpoint, config: PreTrainedConfig) -> None:
    from transformers import GenerationMixin

    folder, kind = checkpoint.folder, config.model_type
    special = {each: family.check_network for family in families() if family.check_network for each in family.types}
    if kind in special and config.is_encoder_decoder:
        special[kind](folder, checkpoint.config.get("architectures"))
        return
    known = auto_class(config)._model_mapping
    if type(config) not in known or config.is_encoder_decoder:
        raise EngineError(
            f"{folder} is a {kind} model, which does not continue text: choose a decoder-only language model "
            f"or one of these encoder-decoders: {', '.join(special)}"
        )
    registered: Any = known[type(config)]
    # Some types are registered with several networks; transformers builds the first by default.
    network: type[PreTrainedModel] = registered[0] if isinstance(registered, tuple) else registered
    stated = (checkpoint.config.get("architectures") or [network.__name__])[0]
    # Of a model that reads images too, the text part runs, where transformers has a network for it.
    text_part = stated.replace("ForConditionalGeneration", "ForCausalLM")
    is_text = stated.endswith(("ForCausalLM", "LMHeadModel")) or network.__name__ in (stated, text_part)
    if not is_text or not issubclass(network, GenerationMixin):
        raise EngineError(f"{folder} is a {stated}, which does not continue text: choose a causal language model")
    told = f"{folder} is a {kind} model, which counts positions from its padding token and not from 0: {OTHER_WAYS}"
    check(not _counts_from_padding(network), told)
    refusal = _unsupported_state(network, config)
    told = f"{folder} is a {kind} model, whose {refusal}, so drafted tokens cannot be taken back: {OTHER_WAYS}"
    check(not refusal, told)


def _counts_from_padding(network: type[PreTrainedModel]) -> bool:
    """Whether positions are counted as in RoBERTa: the first one is the padding token's id plus one."""
    parts = vars(inspect.getmodule(network)).values()
    return any(inspect.isclass(part) and hasattr(part, "create_position_ids_from_input_ids") for part in parts)


def _unsupported_state(network: type[PreTrainedModel], config: PreTrainedConfig) -> str | None:
    text = config.get_text_config()
    others = sorted(set(getattr(text, "layer_types", None) or ()) - _ROLLBACK_LAYERS)
    if others:
        return f"layers ({', '.join(others)}) do not store plain keys and values of each token"
    if network._is_stateful and not getattr(text, "layer_types", None):
        return "layers keep a recurrent state"
    needed = {"attention_mask", "position_ids", cache_argument(network.forward)}
    lacking = needed - set(inspect.signature(network.forward).parameters)
    if lacking or getattr(text, "alibi", False):
        return "cache is not indexed by token position"
    return None


def cache_argument(forward: Callable[..., Any]) -> str:
    """Name of a forward pass's argument, and of what it returns: `cache` since transformers 5.24."""
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"
