"""Architecture check: networks that write text and whose KV cache can be rolled back; others are refused by name."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from specchat.engine.errors import EngineError, first_line
from specchat.engine.models import encoder_decoder
from specchat.engine.models.checkpoint import Checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_ROLLED_BACK = {"full_attention", "sliding_attention", "chunked_attention"}
"""Layer types whose only state is keys and values by position: rolling back shortens a length."""
_NEEDED_ARGUMENTS = {"attention_mask", "position_ids", "past_key_values"}


def model_config(checkpoint: Checkpoint) -> PreTrainedConfig:
    """Load a checkpoint's transformers config and check that its network is supported. No code of the folder is run.

    Raises:
        EngineError: it writes no text, needs its own code, is quantised, or keeps state other than a KV cache.
    """
    from transformers import CONFIG_MAPPING, AutoConfig

    folder, raw = checkpoint.folder, checkpoint.config
    kind = raw.get("model_type")
    if kind not in CONFIG_MAPPING:
        if "auto_map" in raw:
            raise EngineError(
                f"{folder} brings its own code ({_first(raw['auto_map'])}), which specchat never runs: "
                "choose a model that transformers knows"
            )
        stated = f"of type {kind!r}, which the installed transformers does not know" if kind else "without a model_type"
        raise EngineError(f"{folder} is a model {stated}: upgrade transformers or choose another model")
    if raw.get("quantization_config"):
        method = raw["quantization_config"].get("quant_method", "an unnamed method")
        raise EngineError(
            f"{folder} is quantised with {method}, which is not supported: give the unquantised model, or a GGUF file"
        )
    try:
        # transformers knows the type, so an auto_map in the config is ignored.
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        raise EngineError(
            f"{folder / 'config.json'} is not a valid {kind} configuration ({first_line(error)})"
        ) from error
    _check_network(checkpoint, config)
    _check_depth(checkpoint, config)
    return config


def _check_depth(checkpoint: Checkpoint, config: PreTrainedConfig) -> None:
    """Refuse more layers than the weights can be of: transformers would make them all before it finds them missing."""
    text, folder = config.get_text_config(), checkpoint.folder
    layers, hidden = getattr(text, "num_hidden_layers", None), getattr(text, "hidden_size", None)
    if config.model_type in encoder_decoder.KINDS:
        layers = config.num_layers + config.num_decoder_layers
    # Each layer has a norm of this size at least.
    if isinstance(layers, int) and isinstance(hidden, int) and layers * hidden > checkpoint.parameters:
        raise EngineError(
            f"{folder / 'config.json'} states {layers} layers of width {hidden}, for which {folder} has too few "
            "weights: fetch the model again"
        )


def _check_network(checkpoint: Checkpoint, config: PreTrainedConfig) -> None:
    from transformers import AutoModelForCausalLM

    folder, kind = checkpoint.folder, config.model_type
    if kind in encoder_decoder.KINDS and encoder_decoder.is_one(config):
        encoder_decoder.check_network(folder, checkpoint.config.get("architectures"))
        return
    if type(config) not in AutoModelForCausalLM._model_mapping or config.is_encoder_decoder:
        raise EngineError(
            f"{folder} is a {kind} model, which does not continue text: choose a decoder-only language model "
            f"or one of these encoder-decoders: {', '.join(encoder_decoder.KINDS)}"
        )
    network = _network(AutoModelForCausalLM._model_mapping[type(config)])
    stated = (checkpoint.config.get("architectures") or [network.__name__])[0]
    if not stated.endswith(("ForCausalLM", "LMHeadModel")) and stated != network.__name__:
        raise EngineError(f"{folder} is a {stated}, which does not continue text: choose a causal language model")
    if _counts_from_padding(network):
        raise EngineError(
            f"{folder} is a {kind} model, which counts positions from its padding token and not from 0: "
            "choose another decoder-only language model"
        )
    refusal = _memory_of_another_kind(network, config)
    if refusal:
        raise EngineError(
            f"{folder} is a {kind} model, whose {refusal}, so drafted tokens cannot be taken back: "
            "choose a model with plain attention"
        )


def _network(registered: Any) -> type[PreTrainedModel]:
    # A few types are registered with several networks; the first is the one transformers builds by default.
    network: type[PreTrainedModel] = registered[0] if isinstance(registered, tuple) else registered
    return network


def _counts_from_padding(network: type[PreTrainedModel]) -> bool:
    """Whether the embeddings are of RoBERTa's kind, whose first position is the padding token's number plus one."""
    parts = vars(inspect.getmodule(network)).values()
    return any(inspect.isclass(part) and hasattr(part, "create_position_ids_from_input_ids") for part in parts)


def _memory_of_another_kind(network: type[PreTrainedModel], config: PreTrainedConfig) -> str | None:
    text = config.get_text_config()
    others = sorted(set(getattr(text, "layer_types", None) or ()) - _ROLLED_BACK)
    if others:
        return f"layers ({', '.join(others)}) are not plain attention"
    if network._is_stateful:
        return "layers keep a recurrent state"
    lacking = sorted(_NEEDED_ARGUMENTS - set(inspect.signature(network.forward).parameters))
    if lacking or getattr(text, "alibi", False):
        return "cache is not indexed by token position"
    return None


def _first(auto_map: Any) -> str:
    return str(next(iter(auto_map.values()), "auto_map")) if isinstance(auto_map, dict) else "auto_map"
