"""A decoder of the common kind as data: sizes, constants, windows and rotary frequencies, made from its configuration.

Made once, when a model is packed, with transformers' own configuration and rotary embedding, so that defaults and
every kind of rotary scaling are those of the modelling code; loading it needs neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specchat.engine.errors import EngineError
from specchat.engine.kernels.decoder_weights import check_sizes

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3")
"""Model types of transformers whose layers the kernels' decoder computes."""
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_PER_HEAD_NORMS = ("qwen3", "gemma3_text")
_GEMMA = ("gemma2", "gemma3_text")
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Rotary:
    """One rotary embedding: the angle of pair i at position p is p x frequencies[i]."""

    frequencies: tuple[float, ...]
    scaling: float
    """Factor on cosines and sines."""
    long_frequencies: tuple[float, ...] = ()
    """Of longrope: those of contexts beyond `original_context`."""
    original_context: int = 0

    def table(self, context: int, positions: int) -> tuple[Floats, Floats]:
        """Cosines and sines [positions, pairs], float32, for texts of up to `context` tokens.

        longrope has two sets of frequencies, and the modelling code takes the one for the longest text of a batch; here
        a context has one, so that cached keys stay valid: the long set where it is longer than the original context.
        """
        import torch

        chosen = self.long_frequencies if self.long_frequencies and context > self.original_context else None
        angles = torch.arange(positions).float()[:, None] * torch.tensor(chosen or self.frequencies)
        return (angles.cos() * self.scaling).numpy(), (angles.sin() * self.scaling).numpy()


@dataclass(frozen=True, slots=True)
class DecoderDescription:
    """Everything but the weights."""

    shape: dict[str, Any]
    """Arguments of `engine.kernels.decoder_weights.DecoderShape`."""
    windows: tuple[int, ...]
    """Per layer, how many positions a token sees, itself included; 0 for all."""
    ropes: tuple[int, ...]
    """Per layer, which of `rotaries`."""
    rotaries: tuple[Rotary, ...]
    tied: bool
    """Whether the output layer is the embedding."""
    norm_offset: float = 0.0
    """What is added to a norm's stored weights: 1 where the modelling code multiplies by 1 + w."""
    out_norms: bool = False
    """Whether what attention and MLP put out is normed before it is added."""
    head_norms: bool = False
    """Whether queries and keys are normed per head."""

    @property
    def layers(self) -> int:
        """How many."""
        return len(self.windows)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> DecoderDescription:
        """From what `to_json` gave."""
        rotaries = tuple(Rotary(**_with_tuples(each)) for each in values["rotaries"])
        return cls(**_with_tuples(values) | {"rotaries": rotaries})


def _with_tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


class OtherFamilyError(EngineError):
    """A model that the decoder does not compute."""


def describe_decoder(config: PreTrainedConfig) -> DecoderDescription:
    """The description of a model.

    Raises:
        OtherFamilyError: it is of another family, or has a part that the decoder does not compute.
    """
    kind = config.model_type
    if kind not in FAMILIES:
        raise OtherFamilyError(f"models of type {kind} do not run on the quantised kernels: {', '.join(FAMILIES)} do")
    activation = getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", "silu")
    if activation not in _ACTIVATIONS:
        raise OtherFamilyError(f"the quantised kernels do not compute {activation}, which this {kind} model asks for")
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
        shape={
            "hidden": config.hidden_size,
            "heads": config.num_attention_heads,
            "key_heads": config.num_key_value_heads or config.num_attention_heads,
            "head_size": size,
            "intermediate": config.intermediate_size,
            "vocabulary": config.vocab_size,
            "epsilon": config.rms_norm_eps,
            "activation": _ACTIVATIONS[activation],
            "attention_scale": (config.query_pre_attn_scalar if gemma else size) ** -0.5,
            "attention_cap": getattr(config, "attn_logit_softcapping", None) or 0.0,
            "logit_cap": getattr(config, "final_logit_softcapping", None) or 0.0,
            "embedding_scale": config.hidden_size**0.5 if gemma else 1.0,
        },
        windows=tuple(window if not layer_types or layer_types[i] == "sliding_attention" else 0 for i in range(count)),
        ropes=tuple(types.index(layer_types[i]) if len(types) > 1 else 0 for i in range(count)),
        rotaries=rotaries,
        tied=bool(config.tie_word_embeddings),
        norm_offset=1.0 if gemma else 0.0,
        out_norms=gemma,
        head_norms=kind in _PER_HEAD_NORMS,
    )


def _rotaries(config: PreTrainedConfig) -> tuple[Sequence[str], tuple[Rotary, ...]]:
    """The rotary embeddings of the modelling code, with the layer types they are for (one: for all layers)."""
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
