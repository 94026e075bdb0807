"""Description of a decoder without its weights: sizes, constants, windows, rotary frequencies, and names of weights.

It is computed once, when a model is packed, from transformers' configuration and rotary embedding, so that defaults and
rotary scaling are as in the modelling code. Loading a packed model does not import transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specchat.engine.errors import EngineError
from specchat.engine.kernels.decoder_shape import DecoderShape, LayerShape, check_shape
from specchat.engine.models.families import families, family_of
from specchat.engine.models.family import Family
from specchat.engine.models.packed import names

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "clamped_swish": "clamped_swish"}
"""Names of activations in configurations to names in the kernels."""
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Rotary:
    """One rotary embedding: the angle of pair i at position p is p x frequencies[i]."""

    frequencies: tuple[float, ...]
    scaling: float
    """Factor for cosines and sines."""
    long_frequencies: tuple[float, ...] = ()
    """longrope: frequencies for contexts beyond `original_context`."""
    original_context: int = 0
    query_growth: float = 0.0
    """b: queries at position p are multiplied by 1 + b x log(1 + ⌊p / original_context⌋) (Llama 4, Ministral 3)."""

    def table(self, context: int, positions: int) -> tuple[Floats, ...]:
        """Cosines, sines [positions, pairs] and any factors of queries, for texts of up to `context` tokens; float32.

        longrope has two sets of frequencies. The modelling code chooses by the longest text of a batch; here the
        context decides, so that cached keys stay valid.
        """
        import torch

        chosen = self.long_frequencies if self.long_frequencies and context > self.original_context else None
        places = torch.arange(positions)
        angles = places.float()[:, None] * torch.tensor(chosen or self.frequencies)
        tables = [angles.cos() * self.scaling, angles.sin() * self.scaling]
        if self.query_growth:
            tables.append(1 + self.query_growth * torch.log(1 + places // self.original_context))
        return tuple(table.numpy() for table in tables)


@dataclass(frozen=True, slots=True)
class DecoderDescription:
    """A decoder without its weights."""

    shape: DecoderShape
    windows: tuple[int, ...]
    """Per layer, number of positions that a token sees, itself included; 0 for all."""
    ropes: tuple[int, ...]
    """Per layer, index into `rotaries`."""
    rotaries: tuple[Rotary, ...]
    tied: bool
    """Whether the output layer shares the embedding's weights."""
    norm_offset: float = 0.0
    """Added to the weights of norms: 1 if the modelling code multiplies by 1 + w."""
    out_norms: bool = False
    """Whether the outputs of attention and MLP are normalised before the residual addition."""
    head_norms: bool = False
    """Whether queries and keys are normalised per head."""
    recurrent: tuple[int, ...] = ()
    """Layers with a short convolution (LFM2), a gated delta net (Qwen3.5) or a state space model (Mamba-2) in the place
    of attention."""
    gated_attention: bool = False
    """Whether the output of attention has a gate."""
    state_space: bool = False
    """Whether the recurrent layers are state space models."""
    family: str = ""
    """Model type of transformers."""
    layer_shapes: tuple[LayerShape, ...] = ()
    """Sizes of each layer; empty if `shape` has the sizes of all."""
    value_norm: bool = False
    """Whether values are normalised per head, without weights."""
    inputs: bool = False
    """Whether every layer has inputs besides the output of the one before (per-layer embeddings)."""

    def layer_shape(self, layer: int) -> LayerShape:
        """Sizes of a layer."""
        return self.layer_shapes[layer] if self.layer_shapes else self.shape.layer

    def matrices(self, layer: int, has: Callable[[str], bool]) -> dict[str, str]:
        """Matrices of a layer: part of `LayerWeights` to the name of the weight in the model, without its suffix.

        The matrices of all experts of a layer are one matrix, one after the other.

        Args:
            layer: its number.
            has: whether the model has a weight of that name.
        """
        mlp = {part: names.MATRICES[part] for part in ("gate", "up", "down")}
        if layer in self.recurrent:
            parts = names.CONVOLUTION | mlp | (names.DELTA_NET if self.shape.delta_value_heads else {})
        else:
            parts = names.MATRICES | ({"mixer_gate": names.QUERY_GATE} if self.gated_attention else {})
        sizes = self.layer_shape(layer)
        absent: tuple[str, ...] = (
            ("key", "value") if sizes.source is not None else ("value",) if sizes.values_are_keys else ()
        )
        absent += ("key",) if layer in self.recurrent and self.state_space else ()
        parts = {part: name for part, name in parts.items() if part not in absent} | (
            names.INPUTS if self.inputs else {}
        )
        if has(self._of_layer(layer, names.ROUTER, ".weight")):
            mixture = {part: name.replace("mlp.", "mlp.experts.") for part, name in mlp.items()}
            shared = {part: each for part, each in names.SHARED.items() if has(self._of_layer(layer, each, ".weight"))}
            parts = parts | mixture | {"router": names.ROUTER} | shared
        return {part: self._of_layer(layer, name) for part, name in parts.items()}

    def _of_layer(self, layer: int, name: str, suffix: str = "") -> str:
        return self.name(f"model.layers.{layer}.{name}") + suffix

    def name(self, name: str) -> str:
        """Name of a weight in transformers' network, from its name in most families."""
        family = family_of(self.family)
        return family.name(name) if family else name

    def offset(self, name: str) -> np.float32:
        """Offset that the kernels add to a vector of the modelling code."""
        return np.float32(self.norm_offset if name.endswith("norm.weight") and names.DELTA_NORM not in name else 0)

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.windows)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> DecoderDescription:
        """Inverse of `asdict`, from values that were JSON."""
        rotaries = tuple(Rotary(**with_tuples(rotary)) for rotary in values["rotaries"])
        layers = tuple(LayerShape(**each) for each in values.get("layer_shapes", ()))
        parts = {"shape": DecoderShape(**values["shape"]), "rotaries": rotaries, "layer_shapes": layers}
        return cls(**with_tuples(values) | parts)


def with_tuples(values: dict[str, Any]) -> dict[str, Any]:
    """Values that were JSON, with tuples as they were before."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


class OtherFamilyError(EngineError):
    """The kernels' decoder does not support this model."""


def packed_family(config: PreTrainedConfig) -> Family:
    """The family of a model that the decoder supports.

    Raises:
        OtherFamilyError: it supports no such family.
    """
    kind, family = config.model_type, family_of(config.model_type)
    if family is None or not family.packed:
        supported = ", ".join(each.types[0] for each in families() if each.packed)
        raise OtherFamilyError(f"models of type {kind} do not run on the quantised kernels: {supported} do")
    return family


def describe_decoder(config: PreTrainedConfig) -> DecoderDescription:
    """Describe a model.

    Raises:
        OtherFamilyError: the decoder does not support its family, or a setting of it.
    """
    kind, family = config.model_type, packed_family(config)
    looks_ahead = getattr(config, "use_bidirectional_attention", None) not in (None, False, "vision")
    if looks_ahead or family.unsupported(config):
        raise OtherFamilyError(f"the quantised kernels do not compute what is special about this {kind} model")
    if (activation := family.activation(config)) not in _ACTIVATIONS:
        raise OtherFamilyError(f"the quantised kernels do not compute {activation}, which this {kind} model uses")
    network = empty_network(config).base_model
    types, rotaries = _rotaries(config, network)
    layer_types = list(getattr(config, "layer_types", None) or [])
    window = getattr(config, "sliding_window", None) or 0
    count, layer_shapes = config.num_hidden_layers, family.layer_shapes(config, network)
    shape = _shape(config, _ACTIVATIONS[activation], layer_shapes, family.shape(config, network))
    check_shape(shape, (shape.layer, *layer_shapes))
    return DecoderDescription(
        shape=shape,
        windows=tuple(window if not layer_types or layer_types[i] == "sliding_attention" else 0 for i in range(count)),
        ropes=tuple(types.index(layer_types[i]) if len(types) > 1 else 0 for i in range(count)),
        rotaries=rotaries,
        tied=bool(config.tie_word_embeddings),
        recurrent=tuple(i for i in range(count) if layer_types and layer_types[i] in ("conv", "linear_attention")),
        family=kind,
        layer_shapes=layer_shapes,
        inputs=bool(getattr(config, "hidden_size_per_layer_input", 0)),
        **{name: getattr(family, name) for name in _OF_FAMILY},
    )


_OF_FAMILY = ("norm_offset", "out_norms", "head_norms", "value_norm", "gated_attention", "state_space")
"""Fields of a description that its family states."""


def _shape(
    config: PreTrainedConfig, activation: str, layers: Sequence[LayerShape], special: dict[str, Any]
) -> DecoderShape:
    """Sizes and constants; where layers differ, with the sizes of the first one."""
    heads, mixture = config.num_attention_heads, bool(getattr(config, "num_experts", None))
    usual = layers[0] if layers else None
    size = usual.head_size if usual else getattr(config, "head_dim", None) or config.hidden_size // heads
    fields: dict[str, Any] = {
        "hidden": config.hidden_size,
        "heads": heads,
        "key_heads": usual.key_heads if usual else config.num_key_value_heads or heads,
        "head_size": size,
        "intermediate": usual.intermediate if usual else getattr(config, "intermediate_size", 0),
        "vocabulary": config.vocab_size,
        "epsilon": getattr(config, "rms_norm_eps", 0.0),
        "activation": activation,
        "attention_scale": size**-0.5,
        "attention_cap": getattr(config, "attn_logit_softcapping", None) or 0.0,
        "logit_cap": getattr(config, "final_logit_softcapping", None) or 0.0,
    }
    if mixture:
        fields |= {
            "experts": config.num_experts,
            "experts_per_token": getattr(config, "num_experts_per_tok", 0),
            "expert_size": getattr(config, "moe_intermediate_size", None) or config.intermediate_size,
            "normalise_experts": bool(getattr(config, "norm_topk_prob", True)),
            "routed_scale": getattr(config, "routed_scaling_factor", 1.0),
        }
    return DecoderShape(**fields | special)


def empty_network(config: PreTrainedConfig) -> Any:
    """The network of the modelling code without weights."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        auto: Any = AutoModelForCausalLM
        return auto.from_config(config)


def _rotaries(config: PreTrainedConfig, network: Any) -> tuple[Sequence[str], tuple[Rotary, ...]]:
    """The rotary embeddings of the modelling code, and the layer type of each; a single one is for all layers."""
    own = next(getattr(network, name) for name in ("rotary_emb", "pos_emb") if hasattr(network, name))
    if own is None:
        return ["all"], (Rotary((), 1.0),)
    rotary = type(own)(config)
    types = list(getattr(rotary, "layer_types", [])) if hasattr(rotary, "rope_type") else []
    if isinstance(getattr(rotary, "rope_type", None), dict):
        return types, tuple(_rotary(config, rotary, layer_type) for layer_type in types)
    return ["all"], (_rotary(config, rotary, None),)


def _rotary(config: PreTrainedConfig, rotary: Any, layer_type: str | None) -> Rotary:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    prefix = "" if layer_type is None else f"{layer_type}_"
    kind = rotary.rope_type if layer_type is None else rotary.rope_type[layer_type]
    if kind not in ("default", "linear", "llama3", "yarn", "longrope", "proportional"):
        raise OtherFamilyError(f"the quantised kernels do not compute rotary embeddings of type {kind}")
    frequencies = tuple(getattr(rotary, f"{prefix}inv_freq").tolist())
    scaling = float(getattr(rotary, f"{prefix}attention_scaling"))
    original = config.rope_parameters.get("original_max_position_embeddings", 0)
    growth = config.rope_parameters.get("llama_4_scaling_beta") or 0.0
    if kind != "longrope":
        return Rotary(frequencies, scaling, (), original, growth)
    long, _ = ROPE_INIT_FUNCTIONS["longrope"](config, None, seq_len=original + 1)
    return Rotary(frequencies, scaling, tuple(long.tolist()), original)
