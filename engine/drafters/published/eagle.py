"""EAGLE heads as they are published.

EAGLE-3 as its authors (Li et al. 2025) and SpecForge write it (`LlamaForCausalLMEagle3`) and as the library speculators
does; EAGLE-1 and EAGLE-2, whose layout is one (Li et al. 2024).

The *state* of a position is the vector that the layer reads next to a token's embedding: of EAGLE-1 the target's last
hidden state, of EAGLE-3 three of them, fused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from specchat.engine.decoding.backend import Backend
from specchat.engine.drafters.head.layer import HeadLayer, LayeredHead, codes_of, target_output
from specchat.engine.drafters.head.network import Norm, rotate
from specchat.engine.drafters.head.torch_layer import LONGEST_LOOK, TorchLayer
from specchat.engine.drafters.published.weights import (
    UnfitError,
    fill,
    hidden_size,
    read_vocabulary,
    require,
    rotary_frequencies,
)
from specchat.engine.models.packed.load import Model

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "relu": functional.relu,
}
_SPECULATORS = "eagle3"


class EagleShape:
    """Sizes and choices of a head of one layer.

    Args:
        config: its config.json.
        names: names of its tensors.

    Raises:
        UnfitError: the head is of an unknown kind.
        KeyError, TypeError, ValueError: config.json lacks a value, or has an impossible one.
    """

    def __init__(self, config: Mapping[str, Any], names: Collection[str]) -> None:
        kind = config.get("speculators_model_type")
        require(
            kind in (None, _SPECULATORS),
            f"is of the kind {kind!r} of speculators, which is not supported: choose one of the kind {_SPECULATORS}",
        )
        layer = dict(config["transformer_layer_config"] if kind else config)
        prefix = next((each for each in ("midlayer.", "layers.0.") if f"{each}self_attn.q_proj.weight" in names), "")
        require(
            prefix and "fc.weight" in names,
            "is of no kind that is known (EAGLE-1 to EAGLE-3, speculators' eagle3, Medusa): choose another",
        )
        layers, activation = int(layer.get("num_hidden_layers", 1)), layer.get("hidden_act", "silu")
        require(layers == 1, f"has {layers} layers, and one is supported: choose another")
        require(activation in _ACTIVATIONS, f"has the activation {activation!r}, which is not supported")
        self.activate, self.prefix, self.names = _ACTIVATIONS[activation], prefix, names
        self.hidden = _positive(layer, "hidden_size")
        self.target_hidden = int(config.get("target_hidden_size") or self.hidden)
        self.heads = _positive(layer, "num_attention_heads")
        self.key_heads = int(layer.get("num_key_value_heads") or self.heads)
        self.head_size = int(layer.get("head_dim") or self.hidden // self.heads)
        self.intermediate = _positive(layer, "intermediate_size")
        self.epsilon = float(layer.get("rms_norm_eps", 1e-6))
        self._layer = layer
        self.third = f"{prefix}hidden_norm.weight" in names
        """EAGLE-3; else EAGLE-1 or EAGLE-2."""
        self.stated_taps = _stated_taps(config)
        """Depths of the target's hidden states that an EAGLE-3 head reads; empty for the usual ones."""
        self.vocabulary = _positive(layer, "vocab_size")
        self.draft_vocabulary = int((self.third and config.get("draft_vocab_size")) or self.vocabulary)
        sliding = kind and "sliding_attention" in (layer.get("layer_types") or ())
        self.window = int(layer["sliding_window"]) if sliding else None
        """Number of tokens that a token sees; None for all."""
        self.tap_norms = bool(config.get("fc_norm", False))
        """Whether each depth is normed before they are fused."""
        self.joint_norm = bool(kind and config.get("norm_before_fc", False))
        """Whether all depths are normed together."""
        self.normed_residual = bool(kind and config.get("norm_before_residual", False))
        """Whether the residual stream begins after the norm of the state."""
        self.normed_state = bool(kind and config.get("norm_output", False))
        """Whether the normed output is the state of the next step; else the plain output is."""
        self.normed_score = self.third and bool(kind or config.get("norm_output", True))
        """Whether the output is normed before it is scored."""

    def taps(self, layers: int) -> tuple[int, ...]:
        """Depths of the target's hidden states that the head reads.

        Args:
            layers: number of the target's layers.

        Raises:
            UnfitError: the target has no such depth.
        """
        if not self.third:
            return (layers,)
        taps = self.stated_taps or (2, layers // 2, layers - 3)
        require(
            all(0 <= tap < layers for tap in taps),
            f"reads the depths {', '.join(map(str, taps))} of its target, and this one has {layers} layers: choose the "
            "head of this target",
        )
        return taps

    def frequencies(self) -> tuple[Tensor, float]:
        """Inverse frequencies [head size / 2] of rotary embeddings and the factor of cosine and sine.

        Raises:
            UnfitError: the rotary settings are unknown, or cannot be read.
        """
        frequencies, factor = rotary_frequencies(self._layer, self.hidden, self.heads, self.head_size)
        require(2 * len(frequencies) == self.head_size, "turns a part of each head alone, which is not supported")
        return frequencies, factor


def _positive(layer: Mapping[str, Any], name: str) -> int:
    size = int(layer[name])
    if size < 1:
        raise ValueError(name)
    return size


def _stated_taps(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Depths as speculators states them, or one more than the layers that other libraries state."""
    key = "eagle_aux_hidden_state_layer_ids"
    depths = config.get(key) or [int(layer) + 1 for layer in (config.get("eagle_config") or {}).get(key) or ()]
    return tuple(map(int, depths))


def read_shape(config: Mapping[str, Any], names: Collection[str], target: Model) -> EagleShape:
    """The shape of a head that was made for a target of these sizes.

    Raises:
        UnfitError: the head is of an unknown kind, or was made for another target.
    """
    try:
        shape = EagleShape(config, names)
    except (KeyError, TypeError, ValueError) as error:
        raise UnfitError(f"cannot be used: its config.json does not state {error}: fetch it again") from None
    hidden = hidden_size(target)
    require(
        shape.target_hidden == hidden,
        f"was made for a target of hidden size {shape.target_hidden}, and {target.name} has {hidden}: choose the "
        "head of this target",
    )
    require(
        shape.vocabulary == target.vocab_size,
        f"was made for a vocabulary of {shape.vocabulary} tokens, and {target.name} has {target.vocab_size}: "
        "choose the head of this target",
    )
    return shape


class EagleHead(LayeredHead):
    """A decoder layer, what comes before it, and what scores; modules have their published names.

    It does what `engine.drafters.head.network.DraftHead` does. EAGLE-1 and EAGLE-2: embedding and state become one,
    which is all that the layer sees. EAGLE-3: the layer sees embedding and state side by side, each normed; only the
    state continues after it.

    Args:
        shape: its sizes and choices.
        taps: depths of the target's hidden states that it reads.
        rotary: inverse frequencies [head size / 2] and the factor of cosine and sine.
    """

    def __init__(self, shape: EagleShape, taps: tuple[int, ...], rotary: tuple[Tensor, float]) -> None:
        super().__init__()
        self.shape, self.taps, self._rotary = shape, taps, rotary
        d, epsilon, width = shape.hidden, shape.epsilon, len(taps) * shape.target_hidden
        self.fc = nn.Linear(width if shape.third else 2 * d, d, bias="fc.bias" in shape.names)
        norms = (Norm(shape.target_hidden, epsilon) for _ in taps)
        self.fc_norm = nn.ModuleList(norms) if shape.third and shape.tap_norms else None
        self.input_norm = Norm(width, epsilon) if shape.third and shape.joint_norm else nn.Identity()
        self.layer = _Layer(shape)
        self.norm = Norm(d, epsilon) if shape.third else nn.Identity()
        self.lm_head = nn.Linear(d, shape.draft_vocabulary, bias=False) if shape.third else None
        self.embed_tokens = nn.Embedding(shape.vocabulary, d) if "embed_tokens.weight" in shape.names else None

    def layer_of(self, vocabulary: Tensor, target: Backend) -> tuple[HeadLayer, int]:
        """The layer next to a target; the target's output layer scores where there is no other."""
        pool = target.cache.pool
        if self.lm_head is None:
            output, size = target_output(target, vocabulary, codes_of(self.layer.mlp["up_proj"]))
        else:
            output, size = self.lm_head, 0
        window = min(pool.columns, self.shape.window or LONGEST_LOOK)
        embed = self.embed_tokens or target.embedding_rows

        def score(outcome: Tensor) -> Tensor:
            logits: Tensor = output(self.norm(outcome) if self.shape.normed_score else outcome)
            return logits

        return TorchLayer(self, score, embed, pool, window), size

    def fused(self, tapped: Tensor) -> Tensor:
        """The state [B, T, d] from the target's hidden states [B, T, taps x d]."""
        if not self.shape.third:
            return tapped
        tapped = self.input_norm(tapped)
        if self.fc_norm is not None:
            parts = tapped.chunk(len(self.fc_norm), dim=-1)
            tapped = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        state: Tensor = self.fc(tapped)
        return state

    def enter(self, state: Tensor, embedded: Tensor) -> Tensor:
        """Inputs of the layer [B, T, n]: the state at each position with the embedding of the next token."""
        if self.shape.third:
            return torch.cat([self.layer.input_layernorm(embedded), self.layer.hidden_norm(state), state], dim=-1)
        stream: Tensor = self.fc(torch.cat([embedded, state], dim=-1))
        return stream

    def read(self, stream: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, heads, T, head size]; keys and values [B, key heads, T, head size]."""
        part, size = self.layer.self_attn, self.shape.head_size
        x = stream[..., : stream.shape[-1] // 3 * 2] if self.shape.third else stream
        query, key, value = (part[name](x).unflatten(-1, (-1, size)) for name in ("q_proj", "k_proj", "v_proj"))
        if "q_norm" in part:
            query, key = part["q_norm"](query), part["k_norm"](key)
        return rotate(query.transpose(1, 2), rotation), rotate(key.transpose(1, 2), rotation), value.transpose(1, 2)

    def finish(self, stream: Tensor, attended: Tensor) -> Tensor:
        """The layer's output [B, T, d]."""
        if self.shape.third:
            stream = stream.chunk(3, dim=-1)[1 if self.shape.normed_residual else 2]
        stream = stream + self.layer.self_attn["o_proj"](attended.transpose(1, 2).flatten(2))
        x, mlp = self.layer.post_attention_layernorm(stream), self.layer.mlp
        out: Tensor = stream + mlp["down_proj"](self.shape.activate(mlp["gate_proj"](x)) * mlp["up_proj"](x))
        return out

    def again(self, outcome: Tensor) -> Tensor:
        """The state that the layer's output is for the next token."""
        state: Tensor = self.norm(outcome) if self.shape.normed_state else outcome
        return state

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine [B, 1, T, head size] of rotary embeddings at positions [B, T]."""
        frequencies, factor = self._rotary
        angles = positions[:, None, :, None].float() * frequencies.to(positions.device)
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos() * factor, angles.sin() * factor


class _Layer(nn.Module):
    """A decoder layer of Llama or Qwen3, without the first norm of EAGLE-1."""

    def __init__(self, shape: EagleShape) -> None:
        super().__init__()
        d, inner, read = shape.hidden, shape.intermediate, shape.hidden * (2 if shape.third else 1)
        asked, keys = shape.heads * shape.head_size, shape.key_heads * shape.head_size
        projections = (("q_proj", read, asked), ("k_proj", read, keys), ("v_proj", read, keys), ("o_proj", asked, d))
        at = f"{shape.prefix}self_attn."
        parts: dict[str, nn.Module] = {
            name: nn.Linear(inputs, outputs, bias=f"{at}{name}.bias" in shape.names)
            for name, inputs, outputs in projections
        }
        if f"{at}q_norm.weight" in shape.names:
            parts |= {name: Norm(shape.head_size, shape.epsilon) for name in ("q_norm", "k_norm")}
        self.self_attn = nn.ModuleDict(parts)
        sizes = (("gate_proj", d, inner), ("up_proj", d, inner), ("down_proj", inner, d))
        self.mlp = nn.ModuleDict({name: nn.Linear(inputs, outputs, bias=False) for name, inputs, outputs in sizes})
        self.input_layernorm, self.hidden_norm = (
            Norm(d, shape.epsilon) if shape.third else nn.Identity() for _ in range(2)
        )
        self.post_attention_layernorm = Norm(d, shape.epsilon)


def read_head(config: Mapping[str, Any], tensors: dict[str, Tensor], target: Model) -> tuple[LayeredHead, Tensor]:
    """A head from its config.json and tensors, and its vocabulary [V'].

    Raises:
        UnfitError: the head is of an unknown kind, was made for another target, or lacks something.
    """
    shape = read_shape(config, tuple(tensors), target)
    vocabulary = read_vocabulary(shape.draft_vocabulary, shape.vocabulary, tensors)
    taps, frequencies = shape.taps(target.layers), shape.frequencies()
    with torch.device("meta"):
        head = EagleHead(shape, taps, frequencies)
    fill(head, tensors, shape.prefix, "layer.")
    return head, vocabulary
