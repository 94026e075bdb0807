"""A draft head run over several of its own steps, as it is when it drafts.

Training-time test of EAGLE-3 (Li et al. 2025, section 3.2): from the second step on the head reads its own output in
the place of the target's hidden states, so that it is trained on what it meets when it drafts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.distill.objective import Agreement, Truth, cross_entropy
from engine.head.network import DraftHead

_FADE = 0.8
"""Weight of each further step's loss (EAGLE-3's)."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences of one length."""

    tokens: Tensor
    """[B, T], int64."""
    counted: Tensor
    """[B, T], bool: tokens worth learning to draft."""
    tapped: Tensor
    """[B, T, taps x d]; the last d of them are the target's last hidden state."""
    log_total: Tensor
    """[B, T], float32: log-sum-exp of the target's logits over its whole vocabulary."""


def unroll(
    head: DraftHead, embedding: Tensor, vocabulary: Tensor, batch: Batch, depth: int, share: float = 1.0
) -> tuple[Tensor, list[Agreement]]:
    """Run the head from every position of a batch.

    Args:
        head: to be trained.
        embedding: [V, d], the target's token embeddings.
        vocabulary: [V', d], the target's output embeddings of the tokens that the head can draft.
        batch: what the target did.
        depth: steps.
        share: of the positions, drawn anew for each batch, from which it goes beyond the first step.

    Returns:
        The loss, and the agreement at each step.
    """
    device, length = batch.tokens.device, batch.tokens.shape[1]
    # From the state at anchor i and token i+1, the first step drafts token i+2.
    anchors = torch.arange(length - depth - 1, device=device)
    state = head.fused(batch.tapped[:, : len(anchors)])
    mask = anchors <= anchors[:, None]
    keys: list[Tensor] = []
    values: list[Tensor] = []
    loss = torch.zeros((), device=device)
    agreements = []
    for step in range(depth):
        embedded = functional.embedding(batch.tokens[:, anchors + step + 1], embedding)
        stream = head.enter(state, embedded)
        if step:  # a draft sees the target's past up to its anchor, and its own beyond
            mask = torch.cat([mask, torch.eye(len(anchors), dtype=torch.bool, device=device)], 1)
        query, key, value = head.read(stream, head.rotation((anchors + step)[None]))
        keys.append(key)
        values.append(value)
        attended = functional.scaled_dot_product_attention(
            query, torch.cat(keys, 2), torch.cat(values, 2), mask, enable_gqa=True
        )
        drafted = head.finish(stream, attended)
        truth = Truth(
            batch.tapped[:, anchors + step + 1, -head.shape.hidden :].flatten(0, 1),
            batch.log_total[:, anchors + step + 1].flatten(),
            batch.counted[:, anchors + step + 2].flatten(),
        )
        one, agreement = cross_entropy(drafted.flatten(0, 1), vocabulary, truth)
        loss = loss + _FADE**step * one
        agreements.append(agreement)
        if step == 0 and share < 1:
            chosen = torch.randperm(len(anchors), device=device)[: int(share * len(anchors))].sort().values
            anchors, mask, drafted = anchors[chosen], mask[chosen], drafted[:, chosen]
        state = head.again(drafted)
    return loss / sum(_FADE**step for step in range(depth)), agreements
