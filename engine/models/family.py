"""Description of a family of models: what its files state, and what its decoder computes.

Each module of `engine.models.families` has the descriptions of one kind of model in `FAMILIES`. Everything else is
common to all families: names of weights (`engine.models.packed.names`), keys of GGUF files
(`engine.models.convert`), and the marks of turns, which are recognised by their text
(`engine.sequence.prompt`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specchat.engine.kernels.decoder_shape import LayerShape
from specchat.engine.models.gguf.header import GgufHeader

Order = NDArray[np.int64]
"""Indices of rows or columns."""
Settings = dict[str, Any]
Parts = Mapping[str, Mapping[str, Order]]
"""Weights of the modelling code whose rows are several weights: name to the names of those and their rows."""


def _none(*_: Any) -> Settings:
    return {}


def _usual_activation(config: Any) -> str:
    return str(getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", "silu"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family of models. The defaults describe Llama's decoder.

    `config` is the configuration of transformers for the text model, `network` its network without weights.
    """

    types: tuple[str, ...]
    """Model types of transformers: that of its text model, then others that contain it."""
    ignored: tuple[str, ...] = ()
    """Settings that files may state and the modelling code ignores."""
    overflows: bool = False
    """Whether hidden states exceed the largest float16."""
    check_network: Callable[[Path, Any], None] | None = None
    """For encoder-decoders: checks the network that the config.json of a folder states."""
    describe: Callable[[Path, Any, Any], Settings] | None = None
    """For encoder-decoders: checks folder, network and chat template; returns the fields of `LoadedModel` that differ,
    the backend among them."""

    # Drafters that are published with it.
    mtp: bool = False
    """Whether its files may have a multi-token-prediction layer."""
    assistants: tuple[str, ...] = ()
    """Model types of drafters that attend to its keys and values."""

    # GGUF files.
    architecture: str = ""
    """llama.cpp's name; empty if its GGUF files are left to transformers' reader."""
    settings: Callable[[GgufHeader], Settings] = _none
    """Settings of its configuration that differ from the common ones, by the metadata of a file."""
    mixture: bool = False
    """Whether its files may have experts."""
    fused: bool = False
    """Whether its files have gate and up projection in one matrix."""
    drops_spaces: bool = False
    """Whether the tokenizer drops spaces after special tokens."""
    orders: Callable[[Any], tuple[Mapping[str, Order], Mapping[str, Order]]] = lambda _: ({}, {})
    """Orders that bring the rows, and the columns, of a file into the modelling code's order, by config: each by a part
    of the weight's name."""

    # The decoder of the quantised kernels.
    packed: bool = True
    """Whether the kernels' decoder runs it."""
    unsupported: Callable[[Any], bool] = lambda _: False
    """Whether a model of this config has a part that the kernels' decoder lacks."""
    activation: Callable[[Any], str] = _usual_activation
    """Name of the activation of the MLP, by config."""
    shape: Callable[[Any, Any], Settings] = _none
    """Fields of `DecoderShape` that differ from the usual ones, by config and network."""
    layer_shapes: Callable[[Any, Any], tuple[LayerShape, ...]] = lambda *_: ()
    """Sizes of each layer, by config and network, where they differ."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Names of weights, or parts of them, in most families to those in this one."""
    published: Mapping[str, str] = field(default_factory=dict)
    """Names, or parts of them, in published safetensors to those in the modelling code."""
    parts: Callable[[Any], Parts] = _none
    """Weights of the modelling code that the decoder has apart or in another order, by config; files have either."""
    norm_offset: float = 0.0
    """Added to the weights of norms: 1 if the modelling code multiplies by 1 + w."""
    out_norms: bool = False
    """Whether the outputs of attention and MLP are normalised before the residual addition."""
    head_norms: bool = False
    """Whether queries and keys are normalised per head."""
    value_norm: bool = False
    """Whether values are normalised per head, without weights."""
    gated_attention: bool = False
    """Whether the output of attention has a gate."""
    state_space: bool = False
    """Whether its recurrent layers are state space models (Mamba-2)."""
    experts_in_turn: bool = False
    """Whether parameters of experts are transposed, with the rows of gate and up in turn."""

    def name(self, usual: str) -> str:
        """Name of a weight from its name in most families."""
        return _renamed(usual, self.names)

    def usual(self, name: str) -> str:
        """Inverse of `name`."""
        return _renamed(name, {own: most for most, own in self.names.items()})

    def of_published(self, name: str) -> str:
        """Name of a weight from its name in published safetensors."""
        return _renamed(name, self.published)


def _renamed(name: str, names: Mapping[str, str]) -> str:
    return next((name.replace(old, new) for old, new in names.items() if old in name), name)


def stretches(sizes: Mapping[str, int]) -> dict[str, Order]:
    """Rows of weights that follow each other in one, by their names and sizes."""
    ends = np.cumsum([*sizes.values()])
    return {name: np.arange(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}


def layer_count(header: GgufHeader) -> int:
    """Number of layers, without layers of multi-token prediction, which are the last blocks of a file."""
    return int(header.setting("block_count")) - int(header.setting("nextn_predict_layers", 0))


def head_size(header: GgufHeader) -> int:
    """Size of an attention head."""
    heads = header.setting("attention.head_count")
    stated = header.setting("attention.key_length", None)
    return int(stated or header.setting("embedding_length") // (max(heads) if isinstance(heads, list) else heads))


def has_tensor(header: GgufHeader, name: str) -> list[bool]:
    """Whether each layer has a tensor of that name."""
    return [f"blk.{layer}.{name}" in header.tensors for layer in range(layer_count(header))]


def layer_types(header: GgufHeader, period: int) -> list[str]:
    """Sliding or full attention of each layer; if only a period is known, its last layer has full attention."""
    pattern, layers = header.setting("attention.sliding_window_pattern", period), layer_count(header)
    if not isinstance(pattern, list):
        pattern = [bool((layer + 1) % pattern) for layer in range(layers)]
    return ["sliding_attention" if slides else "full_attention" for slides in pattern[:layers]]


def attention_bias(header: GgufHeader) -> Settings:
    """Whether attention has biases: llama.cpp reads each bias that a file has; the others are zero."""
    return {"attention_bias": any(any(has_tensor(header, f"attn_{part}.bias")) for part in ("q", "k", "v", "output"))}


def experts(header: GgufHeader) -> Settings:
    """Number of the experts of a mixture, and their size."""
    return {
        "num_experts": header.setting("expert_count"),
        "num_experts_per_tok": header.setting("expert_used_count"),
        "moe_intermediate_size": header.setting("expert_feed_forward_length"),
    }
