"""The network of a draft head: one transformer layer on the target's hidden states and token embeddings.

As in EAGLE-3 (Li et al. 2025, section 3.1), hidden states of several depths of the target, taken where it has just
been, are fused; the layer reads them with the embedding of the token that followed, and what it puts out takes their
place for the next token, so that it can continue drafting on its own output. Unlike there, all three enter the residual
stream.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Sizes of a draft head."""

    hidden: int
    """d, the target's hidden size."""
    heads: int
    key_heads: int
    head_size: int
    intermediate: int
    taps: tuple[int, ...]
    """Depths of the target whose hidden states are fused: 0 the embeddings, the last one after the final norm."""
    rope_theta: float
    epsilon: float
    clusters: int = 0
    """Clusters of the tokens it can draft, equal stretches of its vocabulary; 0 where it scores all of them."""


class DraftHead(nn.Module):
    """One layer. Reading and finishing are apart because training and drafting keep keys and values differently.

    A *state* is what has been said about the past of a position, [B, T, d]: fused from the target's hidden states, or
    made from the head's own output.
    """

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        d, size = shape.hidden, shape.head_size
        self.fuse = nn.Linear(d * len(shape.taps), d, bias=False)
        self.again = nn.Linear(d, d, bias=False)
        self.token = nn.Linear(d, d, bias=False)
        self.read_norm = Norm(d, shape.epsilon)
        self.qkv = nn.Linear(d, (shape.heads + 2 * shape.key_heads) * size, bias=False)
        self.out = nn.Linear(shape.heads * size, d, bias=False)
        self.mlp_norm = Norm(d, shape.epsilon)
        self.gate_up = nn.Linear(d, 2 * shape.intermediate, bias=False)
        self.down = nn.Linear(shape.intermediate, d, bias=False)
        self.score_norm = Norm(d, shape.epsilon)
        self.clusters = nn.Linear(d, shape.clusters, bias=False) if shape.clusters else None

    @property
    def taps(self) -> tuple[int, ...]:
        """Depths of the target's hidden states that it reads."""
        return self.shape.taps

    def fused(self, tapped: Tensor) -> Tensor:
        """The state [B, T, d] from the target's hidden states [B, T, taps x d], each depth normed on its own."""
        state: Tensor = self.fuse(self.normed(tapped.reshape(*tapped.shape[:-1], -1, self.shape.hidden)).flatten(-2))
        return state

    def enter(self, state: Tensor, embedded: Tensor) -> Tensor:
        """The layer's input [B, T, d]: the state at each position with the embedding [B, T, d] of the next token."""
        stream: Tensor = state + self.token(self.normed(embedded))
        return stream

    def read(self, stream: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, heads, T, head size]; keys and values [B, key heads, T, head size]."""
        shape = self.shape
        mixed: Tensor = self.qkv(self.read_norm(stream))
        mixed = mixed.reshape(*mixed.shape[:2], -1, shape.head_size).transpose(1, 2)
        asked = shape.heads + shape.key_heads
        turned = rotate(mixed[:, :asked], rotation)
        return turned[:, : shape.heads], turned[:, shape.heads :], mixed[:, asked:]

    def finish(self, stream: Tensor, attended: Tensor) -> Tensor:
        """The layer's output, normed: what is scored [B, T, d]. `attended` is [B, heads, T, head size]."""
        stream = stream + self.out(attended.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.mlp_norm(stream)).chunk(2, dim=-1)
        scored: Tensor = self.score_norm(stream + self.down(functional.silu(gate) * up))
        return scored

    def normed(self, x: Tensor) -> Tensor:
        """Root mean square 1 over the last dimension."""
        return functional.rms_norm(x, (self.shape.hidden,), eps=self.shape.epsilon)

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine [B, 1, T, head size] of rotary embeddings at positions [B, T] (Su et al. 2021)."""
        size = self.shape.head_size
        steps = torch.arange(0, size, 2, device=positions.device, dtype=torch.float32) / size
        angles = positions[:, None, :, None].float() * self.shape.rope_theta**-steps
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos(), angles.sin()


class Norm(nn.RMSNorm):
    """Root mean square norm. In training its weight is float32 and what it norms is not: one dtype lets torch use its
    fused kernel."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """x [B, heads, T, head size] turned by cosine and sine (`DraftHead.rotation`), which pair its two halves."""
    cosine, sine = (part.to(x.dtype) for part in rotation)
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat([-second, first], dim=-1) * sine
