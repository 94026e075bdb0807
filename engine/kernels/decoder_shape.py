"""Sizes of a decoder, and whether the kernels can compute with them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from specchat.engine.kernels.library import KernelError

_LARGEST_HEAD = 512
"""Largest size of a head that kernels take."""
_MOST_EXPERTS = 1024


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Sizes of a layer."""

    key_heads: int
    head_size: int
    intermediate: int
    """Size of its MLP; of a mixture that of the expert that all tokens share, if it has one."""
    source: int | None = None
    """Earlier layer whose keys and values it attends to, if it has none itself."""
    values_are_keys: bool = False
    """Whether its values are the keys, before their norm and rotary embedding."""

    @property
    def cached(self) -> tuple[int, int]:
        """Heads and head size of its keys and values in the cache."""
        return self.read if self.source is None else (0, 0)

    @property
    def read(self) -> tuple[int, int]:
        """Heads and head size of the keys and values that it attends to."""
        return self.key_heads, self.head_size


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Sizes and constants of a decoder."""

    hidden: int
    heads: int
    key_heads: int
    """Number of key heads; this, `head_size` and `intermediate` are for layers without a shape of their own."""
    head_size: int
    intermediate: int
    vocabulary: int
    epsilon: float
    activation: str
    """`silu`, `gelu_tanh` or `clamped_swish`, that of gpt-oss."""
    attention_scale: float
    """Factor on the attention scores."""
    attention_cap: float = 0.0
    """c of c·tanh(score/c); 0 for none."""
    logit_cap: float = 0.0
    """c of c·tanh(logit/c); 0 for none."""
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    """Factor on what attention and MLP add to the hidden states."""
    logit_scale: float = 1.0
    taps: int = 0
    """Inputs that a convolution reads, of a recurrent layer or over tokens, the token's own included."""
    conv_groups: int = 0
    """Groups of columns that share dynamic weights of the convolutions over tokens."""
    experts: int = 0
    """Number of experts of a mixture; 0 if every MLP is dense."""
    experts_per_token: int = 0
    expert_size: int = 0
    """Intermediate size of an expert."""
    normalise_experts: bool = False
    """Whether the weights of a token's experts are scaled to add up to 1."""
    sigmoid_experts: bool = False
    """Whether the router's scores are sigmoids of its outputs; else they are their softmax."""
    routed_scale: float = 1.0
    """Factor on the weights of the chosen experts."""
    clusters_scored: int = 0
    """Clusters of the vocabulary that a token gets logits of."""
    delta_key_heads: int = 0
    """Key heads of gated delta nets, groups of state space models; 0 if the recurrent layers are short convolutions."""
    delta_value_heads: int = 0
    delta_key_size: int = 0
    delta_value_size: int = 0

    @property
    def delta_widths(self) -> tuple[int, int]:
        """Sizes of the keys and of the values of all heads of a recurrent layer."""
        return self.delta_key_heads * self.delta_key_size, self.delta_value_heads * self.delta_value_size

    @property
    def channels(self) -> int:
        """Channels of the convolution of a recurrent layer."""
        keys, values = self.delta_widths
        return 2 * keys + values if values else self.hidden

    @property
    def recurrent_sizes(self) -> tuple[int, int]:
        """Numbers that a token adds to what a recurrent layer knows, and numbers of its state."""
        keys, values = self.delta_widths
        return self.channels + keys + values + self.delta_value_heads, self.delta_key_size * values

    @property
    def layer(self) -> LayerShape:
        """Sizes of layers without a shape of their own."""
        return LayerShape(self.key_heads, self.head_size, self.intermediate)


def sizes_fit(hidden: int, head_size: int, intermediate: int) -> bool:
    """Whether the kernels support these sizes."""
    return head_size <= _LARGEST_HEAD and not any(size % 16 for size in (hidden, head_size, intermediate))


def check_sizes(hidden: int, head_size: int, intermediate: int) -> None:
    """Check that the kernels support these sizes.

    Raises:
        KernelError: they do not.
    """
    if not sizes_fit(hidden, head_size, intermediate):
        raise KernelError(
            f"the quantised kernels need sizes that are multiples of 16 and heads up to {_LARGEST_HEAD}: this model "
            f"has hidden {hidden}, head {head_size}, intermediate {intermediate}"
        )


def check_shape(shape: DecoderShape, layers: Iterable[LayerShape]) -> None:
    """Check that the kernels support the sizes of a model, its experts and its gated delta nets.

    Raises:
        KernelError: they do not.
    """
    for each in layers:
        check_sizes(shape.hidden, each.head_size, each.intermediate)
    if shape.experts and (not 0 < shape.experts_per_token <= shape.experts <= _MOST_EXPERTS or shape.expert_size % 16):
        raise KernelError(
            f"the quantised kernels need 1 to {_MOST_EXPERTS} experts of a size that is a multiple of 16 and no more "
            f"per token: this model has {shape.experts} of size {shape.expert_size}, {shape.experts_per_token} a token"
        )
    heads, sizes = (shape.delta_value_heads, shape.delta_key_heads), (shape.delta_key_size, shape.delta_value_size)
    if heads[0] and (heads[0] % heads[1] or any(size % 16 for size in sizes)):
        raise KernelError(
            "the quantised kernels need recurrent layers whose heads have sizes that are multiples of 16 and share key "
            f"heads evenly: this model has {heads[1]} key heads of {sizes[0]} and {heads[0]} value heads of {sizes[1]}"
        )
