"""Network of a published EAGLE head.

It does what `engine.drafters.head.network.DraftHead` does, which `TorchLayer` runs. Its *state* is what it
reads next to a token's embedding: of EAGLE-1 the target's last hidden state, of EAGLE-3 three of them, fused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from specchat.engine.drafters.head.network import Norm, rotate

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "relu": functional.relu,
}
"""What the layer's feed-forward part may be activated by."""


@dataclass(frozen=True, slots=True)
class EagleLayout:
    """An EAGLE head of one layer."""

    third: bool
    """EAGLE-3; else EAGLE-1 or EAGLE-2."""
    prefix: str
    """Of the layer's tensors."""
    hidden: int
    """d, of the head."""
    target_hidden: int
    heads: int
    key_heads: int
    head_size: int
    intermediate: int
    activation: str
    epsilon: float
    taps: tuple[int, ...] | None
    """Depths of the target's hidden states that it reads; None for the kind's own."""
    vocabulary: int
    """V, of the target."""
    draft_vocabulary: int
    """V'."""
    positions: int
    """Longest text that it is made for."""
    rotary: Mapping[str, Any]
    """`rope_theta`, `rope_scaling`, `rope_parameters` as stated."""
    window: int | None
    """Tokens that a token sees; None for all."""
    projection_bias: bool
    output_bias: bool
    fuse_bias: bool
    head_norms: bool
    """Whether queries and keys are normed, as in Qwen3."""
    tap_norms: bool
    """Whether each depth is normed before they are fused."""
    joint_norm: bool
    """Whether all depths are normed together."""
    normed_residual: bool
    """Whether the residual stream begins after the norm of the state."""
    normed_again: bool
    """Whether the normed output is the state of the next step; else the plain one is."""
    normed_score: bool
    """Whether the output is normed before it is scored."""


class EagleHead(nn.Module):
    """A decoder layer, what comes before it, and what scores.

    Args:
        layout: its sizes and choices.
        taps: depths of the target's hidden states that it reads.
        rotary: inverse frequencies [head size / 2] and the factor of cosine and sine.
        embeds: whether it has its own embedding; else the target's is used.
        scores: whether it has its own output layer; else the target's is used.
    """

    def __init__(
        self, layout: EagleLayout, taps: tuple[int, ...], rotary: tuple[Tensor, float], *, embeds: bool, scores: bool
    ) -> None:
        super().__init__()
        self.shape, self.taps = layout, taps
        self._rotary = rotary
        self.front = _ThirdFront(layout, len(taps)) if layout.third else _FirstFront(layout)
        self.layer = _Layer(layout, width=(2 if layout.third else 1) * layout.hidden)
        self.norm = Norm(layout.hidden, layout.epsilon) if layout.third else None
        self.lm_head = nn.Linear(layout.hidden, layout.draft_vocabulary, bias=False) if scores else None
        self.embed_tokens = nn.Embedding(layout.vocabulary, layout.hidden) if embeds else None

    def fused(self, tapped: Tensor) -> Tensor:
        """The state [B, T, d] from the target's hidden states [B, T, taps x d]."""
        return self.front.fused(tapped)

    def enter(self, state: Tensor, embedded: Tensor) -> Tensor:
        """What the layer is run on [B, T, n]: the state at each position with the embedding of the next token."""
        return self.front.enter(state, embedded)

    def read(self, stream: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, heads, T, head size]; keys and values [B, key heads, T, head size]."""
        return self.layer.read(self.front.seen(stream), rotation)

    def finish(self, stream: Tensor, attended: Tensor) -> Tensor:
        """The layer's output [B, T, d]."""
        return self.layer.finish(self.front.residual(stream), attended)

    def again(self, outcome: Tensor) -> Tensor:
        """The state that the layer's output is for the next token."""
        return self._normed(outcome) if self.shape.normed_again else outcome

    def scored(self, outcome: Tensor) -> Tensor:
        """What the output layer reads."""
        return self._normed(outcome) if self.shape.normed_score else outcome

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine [B, 1, T, head size] of rotary embeddings at positions [B, T]."""
        frequencies, factor = self._rotary
        angles = positions[:, None, :, None].float() * frequencies.to(positions.device)
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos() * factor, angles.sin() * factor

    def _normed(self, outcome: Tensor) -> Tensor:
        assert self.norm is not None
        normed: Tensor = self.norm(outcome)
        return normed


class _FirstFront(nn.Module):
    """Of EAGLE-1 and EAGLE-2: embedding and state become one, which is all that the layer sees."""

    def __init__(self, layout: EagleLayout) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * layout.hidden, layout.hidden, bias=layout.fuse_bias)

    def fused(self, tapped: Tensor) -> Tensor:
        return tapped

    def enter(self, state: Tensor, embedded: Tensor) -> Tensor:
        stream: Tensor = self.fc(torch.cat([embedded, state], dim=-1))
        return stream

    def seen(self, stream: Tensor) -> Tensor:
        return stream

    def residual(self, stream: Tensor) -> Tensor:
        return stream


class _ThirdFront(nn.Module):
    """Of EAGLE-3: the layer sees embedding and state side by side, each normed; only the state continues after it."""

    def __init__(self, layout: EagleLayout, taps: int) -> None:
        super().__init__()
        size, epsilon = layout.target_hidden, layout.epsilon
        self._normed_residual = layout.normed_residual
        self.fc = nn.Linear(taps * size, layout.hidden, bias=layout.fuse_bias)
        self.fc_norm = nn.ModuleList(Norm(size, epsilon) for _ in range(taps)) if layout.tap_norms else None
        self.input_norm = Norm(taps * size, epsilon) if layout.joint_norm else None
        self.input_layernorm = Norm(layout.hidden, epsilon)
        self.hidden_norm = Norm(layout.hidden, epsilon)

    def fused(self, tapped: Tensor) -> Tensor:
        if self.input_norm is not None:
            tapped = self.input_norm(tapped)
        if self.fc_norm is not None:
            parts = tapped.chunk(len(self.fc_norm), dim=-1)
            tapped = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        state: Tensor = self.fc(tapped)
        return state

    def enter(self, state: Tensor, embedded: Tensor) -> Tensor:
        return torch.cat([self.input_layernorm(embedded), self.hidden_norm(state), state], dim=-1)

    def seen(self, stream: Tensor) -> Tensor:
        return stream[..., : stream.shape[-1] // 3 * 2]

    def residual(self, stream: Tensor) -> Tensor:
        return stream.chunk(3, dim=-1)[1 if self._normed_residual else 2]


class _Layer(nn.Module):
    """A decoder layer of Llama or Qwen3 without its first norm, whose projections read `width` numbers per token."""

    def __init__(self, layout: EagleLayout, width: int) -> None:
        super().__init__()
        d, size, bias = layout.hidden, layout.head_size, layout.projection_bias
        self._size, self._activate = size, ACTIVATIONS[layout.activation]
        parts: dict[str, nn.Module] = {
            "q_proj": nn.Linear(width, layout.heads * size, bias=bias),
            "k_proj": nn.Linear(width, layout.key_heads * size, bias=bias),
            "v_proj": nn.Linear(width, layout.key_heads * size, bias=bias),
            "o_proj": nn.Linear(layout.heads * size, d, bias=layout.output_bias),
        }
        if layout.head_norms:
            parts |= {"q_norm": Norm(size, layout.epsilon), "k_norm": Norm(size, layout.epsilon)}
        self.self_attn = nn.ModuleDict(parts)
        self.post_attention_layernorm = Norm(d, layout.epsilon)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(d, layout.intermediate, bias=False),
                "up_proj": nn.Linear(d, layout.intermediate, bias=False),
                "down_proj": nn.Linear(layout.intermediate, d, bias=False),
            }
        )

    def read(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        part = self.self_attn
        query, key, value = (part[name](x).unflatten(-1, (-1, self._size)) for name in ("q_proj", "k_proj", "v_proj"))
        if "q_norm" in part:
            query, key = part["q_norm"](query), part["k_norm"](key)
        return rotate(query.transpose(1, 2), rotation), rotate(key.transpose(1, 2), rotation), value.transpose(1, 2)

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        stream: Tensor = residual + self.self_attn["o_proj"](attended.transpose(1, 2).flatten(2))
        x = self.post_attention_layernorm(stream)
        out: Tensor = stream + self.mlp["down_proj"](self._activate(self.mlp["gate_proj"](x)) * self.mlp["up_proj"](x))
        return out
