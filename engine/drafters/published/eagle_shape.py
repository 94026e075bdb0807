"""Sizes and choices of an EAGLE head, read from its config.json and checked against its target."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional

from specchat.engine.drafters.published.rotary import rotary_frequencies
from specchat.engine.drafters.published.weights import UnfitError, hidden_size, require
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
