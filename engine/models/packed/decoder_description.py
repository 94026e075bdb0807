"""Description of a decoder without its weights: sizes, constants, windows, rotary frequencies, and names of weights.

It is computed once, when a model is packed, from transformers' configuration and rotary embedding, so that defaults and
rotary scaling are those of the modelling code. Loading a packed model does not import transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specchat.engine.errors import EngineError
from specchat.engine.kernels.decoder_weights import DecoderShape, check_sizes

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3")
"""Model types of transformers that the kernels' decoder supports."""
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_PER_HEAD_NORMS = ("qwen3", "gemma3_text")
_GEMMA = ("gemma2", "gemma3_text")
Floats = NDArray[np.float32]

EMBEDDING, OUTPUT, FINAL_NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
"""Names of weights in a packed model: those of transformers' state dicts, with fused matrices split."""
MATRICES = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
"""Matrices of a layer: field of `engine.kernels.decoder_weights.LayerWeights` to name."""
NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
    "self_attn.q_norm",
    "self_attn.k_norm",
)
"""Norms of a layer; each family has some of them."""
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Fused matrices of some families, and the matrices that their rows consist of, in order."""


@dataclass(frozen=True, slots=True)
class Rotary:
    """One rotary embedding: the angle of pair i at position p is p x frequencies[i]."""

    frequencies: tuple[float, ...]
    scaling: float
    """Factor for cosines and sines."""
    long_frequencies: tuple[float, ...] = ()
    """longrope: frequencies for contexts beyond `original_context`."""
    original_context: int = 0

    def table(self, context: int, positions: int) -> tuple[Floats, Floats]:
        """Cosines and sines [positions, pairs], float32, for texts of up to `context` tokens.

        longrope has two sets of frequencies. The modelling code chooses by the longest text of a batch; here the
        context decides, so that cached keys stay valid.
        """
        import torch

        chosen = self.long_frequencies if self.long_frequencies and context > self.original_context else None
        angles = torch.arange(positions).float()[:, None] * torch.tensor(chosen or self.frequencies)
        return (angles.cos() * self.scaling).numpy(), (angles.sin() * self.scaling).numpy()


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
    mixers: tuple[int, ...] = ()
    """Per layer, one of `engine.kernels.decoder_weights.MIXERS`; empty where all layers are attention."""
    head_norms: bool = False
    """Whether queries and keys are normalised per head."""

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.windows)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> DecoderDescription:
        """Inverse of `asdict`, from values that were JSON."""
        rotaries = tuple(Rotary(**_with_tuples(rotary)) for rotary in values["rotaries"])
        return cls(**_with_tuples(values) | {"shape": DecoderShape(**values["shape"]), "rotaries": rotaries})


def _with_tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


class OtherFamilyError(EngineError):
    """The kernels' decoder does not support this model."""


def describe_decoder(config: PreTrainedConfig) -> DecoderDescription:
    """Describe a model.

    Raises:
        OtherFamilyError: the decoder does not support its family, or a setting of it.
    """
    kind = config.model_type
    if kind not in FAMILIES:
        raise OtherFamilyError(f"models of type {kind} do not run on the quantised kernels: {', '.join(FAMILIES)} do")
    activation = getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", "silu")
    if activation not in _ACTIVATIONS:
        raise OtherFamilyError(f"the quantised kernels do not compute {activation}, which this {kind} model uses")
    if getattr(config, "mlp_bias", False) or getattr(config, "use_bidirectional_attention", False):
        raise OtherFamilyError(f"the quantised kernels do not compute what is special about this {kind} model")
    types, rotaries = _rotaries(config)
    layer_types = list(getattr(config, "layer_types", None) or [])
    window = getattr(config, "sliding_window", None) or 0
    count = config.num_hidden_layers
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    check_sizes(config.hidden_size, size, config.intermediate_size)
    gemma = kind in _GEMMA
    return DecoderDescription(
        shape=DecoderShape(
            hidden=config.hidden_size,
            heads=config.num_attention_heads,
            key_heads=config.num_key_value_heads or config.num_attention_heads,
            head_size=size,
            intermediate=config.intermediate_size,
            vocabulary=config.vocab_size,
            epsilon=config.rms_norm_eps,
            activation=_ACTIVATIONS[activation],
            attention_scale=(config.query_pre_attn_scalar if gemma else size) ** -0.5,
            attention_cap=getattr(config, "attn_logit_softcapping", None) or 0.0,
            logit_cap=getattr(config, "final_logit_softcapping", None) or 0.0,
            embedding_scale=config.hidden_size**0.5 if gemma else 1.0,
        ),
        windows=tuple(window if not layer_types or layer_types[i] == "sliding_attention" else 0 for i in range(count)),
        ropes=tuple(types.index(layer_types[i]) if len(types) > 1 else 0 for i in range(count)),
        rotaries=rotaries,
        tied=bool(config.tie_word_embeddings),
        norm_offset=1.0 if gemma else 0.0,
        out_norms=gemma,
        head_norms=kind in _PER_HEAD_NORMS,
    )


def _rotaries(config: PreTrainedConfig) -> tuple[Sequence[str], tuple[Rotary, ...]]:
    """The rotary embeddings of the modelling code, and the layer type of each; a single one is for all layers."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        auto: Any = AutoModelForCausalLM
        kind = type(auto.from_config(config).base_model.rotary_emb)
    rotary = kind(config)
    types = list(getattr(rotary, "layer_types", [])) if hasattr(rotary, "rope_type") else []
    if isinstance(getattr(rotary, "rope_type", None), dict):
        return types, tuple(_rotary(config, rotary, layer_type) for layer_type in types)
    return ["all"], (_rotary(config, rotary, None),)


def _rotary(config: PreTrainedConfig, rotary: Any, layer_type: str | None) -> Rotary:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    prefix = "" if layer_type is None else f"{layer_type}_"
    kind = rotary.rope_type if layer_type is None else rotary.rope_type[layer_type]
    if kind not in ("default", "linear", "llama3", "yarn", "longrope"):
        raise OtherFamilyError(f"the quantised kernels do not compute rotary embeddings of type {kind}")
    frequencies = tuple(getattr(rotary, f"{prefix}inv_freq").tolist())
    scaling = float(getattr(rotary, f"{prefix}attention_scaling"))
    if kind != "longrope":
        return Rotary(frequencies, scaling)
    original = config.rope_parameters["original_max_position_embeddings"]
    long, _ = ROPE_INIT_FUNCTIONS["longrope"](config, None, seq_len=original + 1)
    return Rotary(frequencies, scaling, tuple(long.tolist()), original)
