"""Encoder-decoders: which kinds run, what their folders must say, and what they cannot be asked for.

An encoder-decoder reads one text, the source, and writes another; it continues nothing, and holds no conversation.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from specchat.engine.errors import EngineError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

KINDS = ("t5",)
"""Model types of transformers."""
_CONTEXT = 512
"""Tokens of a text that T5 was trained with (Raffel et al. 2020, section 3.1.2), for configurations that do not say."""
_NETWORKS = ("T5ForConditionalGeneration", "T5WithLMHeadModel")


class Named(Protocol):
    """A loaded model."""

    @property
    def name(self) -> str:
        """For display."""

    @property
    def start(self) -> int | None:
        """Token that replies of an encoder-decoder begin with; None for a decoder-only model."""


def is_one(config: Any) -> bool:
    """Whether a configuration is of an encoder-decoder."""
    return bool(getattr(config, "is_encoder_decoder", False))


def check_network(folder: Path, stated: Any) -> None:
    """Check the network that a configuration of one of these kinds states, if it states one.

    Raises:
        EngineError: it writes no text.
    """
    name = (stated or _NETWORKS)[0]
    if name not in _NETWORKS:
        raise EngineError(f"{folder} is a {name}, which writes no text: choose a {_NETWORKS[0]}")


def stated_context(config: PreTrainedConfig) -> int:
    """Tokens of a source, or of a reply, that the network was made for."""
    stated = getattr(config, "n_positions", None)
    return stated if isinstance(stated, int) and stated > 0 else _CONTEXT


def start_token(folder: Path, config: PreTrainedConfig, generation: Any) -> int | None:
    """The token that replies begin with; None for a decoder-only model, whose replies follow the prompt.

    Args:
        folder: of the model.
        config: of the network.
        generation: settings for generation, None if there are none.

    Raises:
        EngineError: nothing says which it is.
    """
    if not is_one(config):
        return None
    stated = [getattr(part, "decoder_start_token_id", None) for part in (generation, config)]
    start = next((token for token in stated if isinstance(token, int)), None)
    if start is None or not 0 <= start < config.vocab_size:
        raise EngineError(
            f"{folder / 'config.json'} does not say which token replies begin with (decoder_start_token_id): "
            "fetch the model again"
        )
    return start


def check_loading(folder: Path, kind: str, template: Any, dtype: torch.dtype) -> None:
    """Check how an encoder-decoder is to be loaded.

    Raises:
        EngineError: it has a chat template, or is to run in float16.
    """
    if template:
        raise EngineError(
            f"{folder} is a {kind} model with a chat template, but a {kind} model reads one text and holds no "
            "conversation: remove the template (chat_template.jinja, or chat_template in tokenizer_config.json)"
        )
    if dtype is torch.float16:
        raise EngineError(f"{folder} is a {kind} model, whose numbers overflow in float16: choose --dtype bfloat16")


def require_decoder_only(model: Named, purpose: str) -> None:
    """Refuse an encoder-decoder for something.

    Args:
        model: that is loaded.
        purpose: what needs a model that continues text, as the beginning of a sentence.

    Raises:
        EngineError: it is one.
    """
    if model.start is not None:
        raise EngineError(
            f"{purpose} a model that continues text, and {model.name} is an encoder-decoder: choose another target"
        )


def check_same_kind(target: Named, draft: Named) -> None:
    """Check that a draft model reads what its target does.

    Raises:
        EngineError: one is an encoder-decoder, and the other is not.
    """
    if (target.start is None) is not (draft.start is None):
        both, other = ("an encoder-decoder", "is none") if target.start is not None else ("decoder-only", "is not")
        raise EngineError(
            f"{target.name} is {both} and the draft {draft.name} {other}: choose a draft of the target's kind"
        )
    if target.start != draft.start:
        raise EngineError(
            f"the draft {draft.name} begins its replies with token {draft.start} and {target.name} with "
            f"{target.start}: choose a draft of the same family"
        )
