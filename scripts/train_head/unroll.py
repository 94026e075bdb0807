"""A head over several draft steps from the positions of text that holds conversations one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from scripts.train_head.text import Text
from specchat.engine.drafters.head.network import DraftHead


def unroll(
    head: DraftHead, embedding: Tensor, text: Text, depth: int, share: float, noise: float
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """As `engine.tools.distill.eagle.unroll`, but no position attends to another conversation.

    Args:
        head: the head to train.
        embedding: [V, d], the target's token embeddings.
        text: B rows.
        depth: draft steps.
        share: fraction of positions that continue beyond the first step.
        noise: standard deviation of the random factor on hidden states.

    Yields:
        For each step, output states [B, N, d], the places [N] of the tokens read last, and the anchors [N]: the places
        whose hidden states the draft began with.
    """
    device, length = text.tokens.device, text.tokens.shape[1]
    anchors = torch.arange(length - depth - 1, device=device)
    tapped = text.tapped[:, : len(anchors)]
    if noise:
        tapped = tapped * (1 + noise * torch.randn_like(tapped))
    state = head.fused(tapped)
    begin = text.begin[:, : len(anchors)]
    mask = (anchors <= anchors[:, None]) & (begin[:, :, None] == begin[:, None])
    groups = head.shape.heads // head.shape.key_heads
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for step in range(depth):
        stream = head.enter(state, functional.embedding(text.tokens[:, anchors + step + 1], embedding))
        if step:  # a draft attends to target states up to its anchor, then to its own
            own = torch.eye(len(anchors), dtype=torch.bool, device=device).expand(len(mask), -1, -1)
            mask = torch.cat([mask, own], -1)
        query, key, value = head.read(stream, head.rotation((anchors + step)[None]))
        keys.append(key)
        values.append(value)
        # Repeated, as the fused attention of a GPU takes no mask together with fewer key heads.
        known, told = (torch.cat(part, 2).repeat_interleave(groups, 1) for part in (keys, values))
        attended = functional.scaled_dot_product_attention(query, known, told, mask[:, None])
        drafted = head.finish(stream, attended)
        yield drafted, anchors + step + 1, anchors
        if step == 0 and share < 1:
            count = int(share * len(anchors))
            chosen = torch.rand(len(anchors), device=device).argsort()[:count].sort().values
            anchors, mask, drafted = anchors[chosen], mask[:, chosen], drafted[:, chosen]
        state = head.again(drafted)
