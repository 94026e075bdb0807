"""Configuration of transformers from the metadata of a GGUF file, for families that have a description.

Keys: llama.cpp's (`gguf-py/gguf/constants.py`), as its converter writes them. What a file does not state follows from
its tensors, or is a constant of the family in llama.cpp (`src/models`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specchat.engine.errors import EngineError, check, errors_as, first_line
from specchat.engine.models.family import Family, Settings, layer_count
from specchat.engine.models.gguf.header import GgufHeader
from specchat.engine.models.gguf.rope import rope_parameters
from specchat.engine.models.model_config import allow_any_heads

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def gguf_config(header: GgufHeader, family: Family) -> PreTrainedConfig:
    """The configuration of a model.

    Raises:
        EngineError: the file lacks a setting, or has one that the modelling code does not know.
    """
    from transformers import AutoConfig

    allow_any_heads()
    with errors_as(
        lambda error: (
            f"the metadata of {header.path} describes no {header.architecture} model ({first_line(error)}): "
            "fetch the file again"
        )
    ):
        settings = _common(header, family) | family.settings(header)
        if "rope_parameters" not in settings:
            settings["rope_parameters"] = rope_parameters(header)
        config: PreTrainedConfig = AutoConfig.for_model(family.types[0], **settings)
        return config


def _common(header: GgufHeader, family: Family) -> Settings:
    heads, key_heads = header.setting("attention.head_count"), header.setting("attention.head_count_kv", None)
    tokens, layers = {"bos": "bos", "eos": "eos", "pad": "padding"}, layer_count(header)
    if header.setting("expert_count", 0) and not family.mixture:
        raise EngineError(
            f"{header.path} is a mixture of experts of a kind that is not supported: choose another model"
        )
    shared = max(key_heads) if isinstance(key_heads, list) else key_heads or heads
    check(
        isinstance(heads, list) or heads % shared == 0,
        f"{header.path} states {header.architecture}.attention.head_count {heads}, which is no multiple of "
        f"attention.head_count_kv {shared}: fetch it again",
    )
    check(layers > 0, f"{header.path} states {header.architecture}.nextn_predict_layers beyond its block_count")
    settings = {
        "vocab_size": header.tensor("token_embd.weight").shape[1],
        "hidden_size": header.setting("embedding_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "head_dim": header.setting("attention.key_length", None),
        "num_key_value_heads": shared,
        "intermediate_size": header.setting("feed_forward_length", None),
        "max_position_embeddings": header.setting("context_length"),
        "rms_norm_eps": header.setting("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        **{f"{ours}_token_id": _token(header, theirs) for ours, theirs in tokens.items()},
    }
    return {name: value for name, value in settings.items() if value is not None or name.endswith("_token_id")}


def _token(header: GgufHeader, name: str) -> int | None:
    """A token that the file names, if the embedding has a row for it."""
    token = header.metadata.get(f"tokenizer.ggml.{name}_token_id")
    return token if isinstance(token, int) and 0 <= token < header.tensor("token_embd.weight").shape[1] else None
