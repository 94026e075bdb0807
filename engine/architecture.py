"""Which networks can run here: text decoders whose cache can be rolled back. The others are refused by name."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from engine.checkpoint import Checkpoint
from engine.errors import EngineError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_ROLLED_BACK = {"full_attention", "sliding_attention", "chunked_attention"}
"""Layer types whose past is keys and values by position, so that forgetting tokens is a shorter length."""
_NEEDED_ARGUMENTS = {"attention_mask", "position_ids", "past_key_values"}


def model_config(checkpoint: Checkpoint) -> PreTrainedConfig:
    """The transformers config of a checkpoint whose network can run here. No code of the folder is run.

    Raises:
        EngineError: it is not a text decoder, needs its own code, is quantised, or has a memory of another kind.
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
        # The type is known, so a stray auto_map is ignored rather than followed.
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        raise EngineError(
            f"{folder / 'config.json'} is not a valid {kind} configuration ({first_line(error)})"
        ) from error
    _check_network(checkpoint, config)
    return config


def _check_network(checkpoint: Checkpoint, config: PreTrainedConfig) -> None:
    from transformers import AutoModelForCausalLM

    folder, kind = checkpoint.folder, config.model_type
    if type(config) not in AutoModelForCausalLM._model_mapping or config.is_encoder_decoder:
        raise EngineError(
            f"{folder} is a {kind} model, which does not continue text: choose a decoder-only language model"
        )
    network = _network(AutoModelForCausalLM._model_mapping[type(config)])
    stated = (checkpoint.config.get("architectures") or [network.__name__])[0]
    if not stated.endswith(("ForCausalLM", "LMHeadModel")) and stated != network.__name__:
        raise EngineError(f"{folder} is a {stated}, which does not continue text: choose a causal language model")
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


def _memory_of_another_kind(network: type[PreTrainedModel], config: PreTrainedConfig) -> str | None:
    text = config.get_text_config()
    others = sorted(set(getattr(text, "layer_types", None) or ()) - _ROLLED_BACK)
    if others:
        return f"layers ({', '.join(others)}) are not plain attention"
    if network._is_stateful:
        return "layers keep a recurrent state"
    lacking = sorted(_NEEDED_ARGUMENTS - set(inspect.signature(network.forward).parameters))
    if lacking or getattr(text, "alibi", False):
        return "cache does not go by token positions"
    return None


def first_line(error: BaseException) -> str:
    """The first line of an error, for quoting inside a sentence."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _first(auto_map: Any) -> str:
    return str(next(iter(auto_map.values()), "auto_map")) if isinstance(auto_map, dict) else "auto_map"
