"""Unrolling of a draft head over several draft steps in training.

Training-time test of EAGLE-3 (Li et al. 2025, section 3.2): from the second step on the head reads its own output
instead of the target's hidden states, as it does when drafting.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from specchat.engine.drafters.head.network import DraftHead
from specchat.engine.tools.distill.batch import Batch
from specchat.engine.tools.distill.objective import Agreement, Truth, acceptance_loss

_FADE = 0.8
"""Weight of each step's loss relative to the previous step's (as in EAGLE-3)."""


def unroll(
    head: DraftHead,
    embedding: Tensor,
    vocabulary: Tensor,
    batch: Batch,
    depth: int,
    share: float = 1.0,
    noise: float = 0.0,
) -> tuple[Tensor, list[Agreement]]:
    """Run the head from every position of a batch.

    Args:
        head: the head to train.
        embedding: [V, d], the target's token embeddings.
        vocabulary: [V', d], the target's output embeddings of the tokens that the head can draft.
        batch: tokens with the target's hidden states.
        depth: draft steps.
        noise: standard deviation of the random factor on hidden states, against overfitting.
        share: fraction of positions, drawn anew for each batch, that continue beyond the first step.

    Returns:
        The loss, and the agreement at each step.
    """
    device, length = batch.tokens.device, batch.tokens.shape[1]
    # From the state at anchor i and token i+1, the first step drafts token i+2.
    anchors = torch.arange(length - depth - 1, device=device)
    tapped = batch.tapped[:, : len(anchors)]
    if noise:
        tapped = tapped * (1 + noise * torch.randn_like(tapped))
    state = head.fused(tapped)
    mask = anchors <= anchors[:, None]
    keys: list[Tensor] = []
    values: list[Tensor] = []
    loss = torch.zeros((), device=device)
    agreements = []
    for step in range(depth):
        embedded = functional.embedding(batch.tokens[:, anchors + step + 1], embedding)
        stream = head.enter(state, embedded)
        if step:  # a draft attends to target states up to its anchor, and to its own behind it
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
        one, agreement = acceptance_loss(drafted.flatten(0, 1), vocabulary, truth)
        loss = loss + _FADE**step * one
        agreements.append(agreement)
        if step == 0 and share < 1:
            chosen = torch.randperm(len(anchors), device=device)[: int(share * len(anchors))].sort().values
            anchors, mask, drafted = anchors[chosen], mask[chosen], drafted[:, chosen]
        state = head.again(drafted)
    return loss / sum(_FADE**step for step in range(depth)), agreements
