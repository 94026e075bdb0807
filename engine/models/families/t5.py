"""T5, an encoder-decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specchat.engine.errors import EngineError, check
from specchat.engine.models.family import Family, Settings

_BACKEND = "specchat.engine.research.encoder_decoder"
_CONTEXT = 512
"""Tokens of a text that T5 was trained with (Raffel et al. 2020, section 3.1.2): for configurations that state none."""
_NETWORKS = ("T5ForConditionalGeneration", "T5WithLMHeadModel")


def _check_network(folder: Path, stated: Any) -> None:
    name = (stated or _NETWORKS)[0]
    check(name in _NETWORKS, f"{folder} is a {name}, which writes no text: choose a {_NETWORKS[0]}")


def _describe(folder: Path, network: Any, template: Any) -> Settings:
    config, kind = network.config, network.config.model_type
    if template:
        raise EngineError(
            f"{folder} is a {kind} model with a chat template, but a {kind} model reads one text and holds no "
            "conversation: remove the template (chat_template.jinja, or chat_template in tokenizer_config.json)"
        )
    if str(network.dtype) == "torch.float16":
        raise EngineError(f"{folder} is a {kind} model, whose numbers overflow in float16: choose --dtype bfloat16")
    stated = [getattr(part, "decoder_start_token_id", None) for part in (network.generation_config, config)]
    start = next((token for token in stated if isinstance(token, int)), None)
    if start is None or not 0 <= start < config.vocab_size:
        raise EngineError(
            f"{folder / 'config.json'} does not say which token replies begin with (decoder_start_token_id): "
            "fetch the model again"
        )
    context = getattr(config, "n_positions", None)
    context = context if isinstance(context, int) and context > 0 else _CONTEXT
    return {"context": context, "start": start, "backend": _BACKEND}


FAMILIES = (Family(types=("t5",), overflows=True, check_network=_check_network, describe=_describe, packed=False),)
