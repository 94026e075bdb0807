"""Decoders on the kernels from networks of transformers, with weights of any format, for the tests of the kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from specchat.engine.kernels.decoder import Decoder
from specchat.engine.kernels.decoder_weights import DecoderShape, DecoderWeights, Floats, LayerWeights
from specchat.engine.kernels.packed_matrix import PackedMatrix

_LLAMA = ("llama", "mistral", "qwen2", "qwen3", "phi3")
_GEMMA = ("gemma2", "gemma3_text")
_WITH_HEAD_NORMS = ("qwen3", "gemma3_text")
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_ROPES = ("default", "linear", "llama3", "yarn", "longrope")
"""Rotary embeddings whose tables depend on nothing but the position and the length of the context."""


class Source(NamedTuple):
    """Where a weight is found: some rows of a tensor."""

    tensor: str
    """Its name in transformers, `model.layers.0.self_attn.q_proj.weight`."""
    first: int = 0
    rows: int | None = None
    """None for all."""


@dataclass(frozen=True, slots=True)
class Description:
    """How a model is run; `of` makes it."""

    shape: DecoderShape
    windows: tuple[int, ...]
    """Of each layer; 0 where all positions are seen."""
    kinds: tuple[str | None, ...]
    """Of each layer, by which rotary tables are chosen; None where the model has one table."""
    family: str
    tied: bool

    @classmethod
    def of(cls, config: Any) -> Description | None:
        """Of a text configuration of transformers; None where the model is not one that the decoder can run."""
        family = config.model_type
        activation = getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", None)
        if family not in (*_LLAMA, *_GEMMA) or activation not in _ACTIVATIONS:
            return None
        if getattr(config, "mlp_bias", False) or getattr(config, "use_bidirectional_attention", None):
            return None
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = DecoderShape(
            hidden=config.hidden_size,
            heads=config.num_attention_heads,
            key_heads=config.num_key_value_heads,
            head_size=head_size,
            intermediate=config.intermediate_size,
            vocabulary=config.vocab_size,
            epsilon=config.rms_norm_eps,
            activation=_ACTIVATIONS[activation],
            attention_scale=(getattr(config, "query_pre_attn_scalar", None) or head_size) ** -0.5,
            attention_cap=getattr(config, "attn_logit_softcapping", None) or 0.0,
            logit_cap=getattr(config, "final_logit_softcapping", None) or 0.0,
            embedding_scale=float(config.hidden_size) ** 0.5 if family in _GEMMA else 1.0,
        )
        if any(size % 16 for size in (shape.hidden, shape.head_size, shape.intermediate)):
            return None
        types = getattr(config, "layer_types", None)
        window = getattr(config, "sliding_window", None) or 0
        layers = range(config.num_hidden_layers)
        described = cls(
            shape=shape,
            windows=tuple(window if types is None or types[i] == "sliding_attention" else 0 for i in layers),
            kinds=tuple(types[i] if types and family == "gemma3_text" else None for i in layers),
            family=family,
            tied=bool(config.tie_word_embeddings),
        )
        if any(_rope(config, kind)["rope_type"] not in _ROPES for kind in set(described.kinds)):
            return None
        return described

    def sources(self, layer: int) -> dict[str, Source]:
        """Where each part of a layer is found, by its name in `LayerWeights`; biases that may be missing among them."""
        prefix = f"model.layers.{layer}."
        queries, keys = self.shape.heads * self.shape.head_size, self.shape.key_heads * self.shape.head_size
        attention = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
        mlp = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
        found = {
            **{part: Source(f"{prefix}self_attn.{name}.weight") for part, name in attention.items()},
            **{f"{part}_bias": Source(f"{prefix}self_attn.{name}.bias") for part, name in attention.items()},
            **{part: Source(f"{prefix}mlp.{name}.weight") for part, name in mlp.items()},
            "attention_norm": Source(f"{prefix}input_layernorm.weight"),
            "mlp_norm": Source(f"{prefix}post_attention_layernorm.weight"),
        }
        if self.family == "phi3":
            fused, half = f"{prefix}self_attn.qkv_proj.weight", self.shape.intermediate
            found["query"] = Source(fused, 0, queries)
            found["key"] = Source(fused, queries, keys)
            found["value"] = Source(fused, queries + keys, keys)
            found["gate"] = Source(f"{prefix}mlp.gate_up_proj.weight", 0, half)
            found["up"] = Source(f"{prefix}mlp.gate_up_proj.weight", half, half)
        if self.family in _GEMMA:
            found["attention_out_norm"] = found["mlp_norm"]
            found["mlp_norm"] = Source(f"{prefix}pre_feedforward_layernorm.weight")
            found["mlp_out_norm"] = Source(f"{prefix}post_feedforward_layernorm.weight")
        if self.family in _WITH_HEAD_NORMS:
            found["query_norm"] = Source(f"{prefix}self_attn.q_norm.weight")
            found["key_norm"] = Source(f"{prefix}self_attn.k_norm.weight")
        return found

    def build(
        self,
        config: Any,
        matrix: Callable[[Source], PackedMatrix],
        vector: Callable[[Source], Floats | None],
        context: int,
    ) -> Decoder:
        """The decoder.

        Args:
            config: what the description was made of.
            matrix: gives a weight, packed; a tied output layer is not asked for.
            vector: gives a norm's weight as the model stores it, or a bias; None where the model has none.
            context: positions of the rotary tables.

        Raises:
            KernelError: there are no kernels here, or a weight does not fit.
        """
        kinds = list(dict.fromkeys(self.kinds))
        layers = []
        for i, (window, kind) in enumerate(zip(self.windows, self.kinds, strict=True)):
            parts: dict[str, Any] = {}
            for name, source in self.sources(i).items():
                if name.endswith("_norm"):
                    parts[name] = self._norm(vector(source))
                else:
                    parts[name] = vector(source) if name.endswith("_bias") else matrix(source)
            layers.append(LayerWeights(**parts, window=window, rope=kinds.index(kind)))
        embedding = matrix(Source("model.embed_tokens.weight"))
        output = embedding if self.tied else matrix(Source("lm_head.weight"))
        final_norm = self._norm(vector(Source("model.norm.weight")))
        tables = [rope_table(config, kind, self.shape.head_size, context) for kind in kinds]
        return Decoder(DecoderWeights(self.shape, layers, embedding, output, final_norm, tables))

    def _norm(self, weight: Floats | None) -> Floats:
        if weight is None:
            raise ValueError("a norm has no weight")
        return weight + np.float32(1) if self.family in _GEMMA else weight


def rope_table(config: Any, kind: str | None, head_size: int, context: int) -> tuple[Floats, Floats]:
    """Cosines and sines [context, pairs] of a model's rotary embedding.

    Args:
        config: a text configuration of transformers.
        kind: the layer type whose table is wanted, where the model has several.
        head_size: of the attention.
        context: positions; longrope takes its long factors where they exceed what the model was first trained on.
    """
    from torch import arange, float32
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = _rope(config, kind)
    scaling = 1.0
    if rope["rope_type"] == "default":
        turning = int(head_size * (rope.get("partial_rotary_factor") or 1.0))
        frequencies = 1.0 / (rope["rope_theta"] ** (arange(0, turning, 2, dtype=float32) / turning))
    else:
        more = {} if kind is None else {"layer_type": kind}
        frequencies, scaling = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu", seq_len=context, **more)
    angles = arange(context, dtype=float32)[:, None] * frequencies
    cosines, sines = (angles.cos() * scaling).numpy(), (angles.sin() * scaling).numpy()
    return cosines, sines


def _rope(config: Any, kind: str | None) -> dict[str, Any]:
    parameters: dict[str, Any] = config.rope_parameters
    return parameters if kind is None else parameters[kind]
