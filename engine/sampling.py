"""From logits to the standardised distribution, and from a distribution to a token.

Every way of sampling is sampling from an adjusted distribution (Leviathan et al. 2023, section 2.2): this module makes
that distribution, for the target and for drafters alike, so p and q always went through the same steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.request import Sampling

# On the CPU sorting a whole vocabulary costs more than a small model's pass; nearly every nucleus lies in the head.
_HEAD = 1024


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The sampling settings of a batch as tensors [B], with what no row asks for known on the host."""

    greedy: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    all_greedy: bool
    max_top_k: int
    """Largest top-k of the rows; 0 where no row uses it."""
    any_top_p: bool
    any_min_p: bool

    @classmethod
    def of(cls, settings: Sequence[Sampling], device: torch.device) -> SamplingRows:
        """The settings of one batch, row by row."""
        numbers = torch.tensor(
            [[float(s.greedy), 1.0 if s.greedy else s.temperature, s.top_k, s.top_p, s.min_p] for s in settings],
            dtype=torch.float64,
        ).to(device, non_blocking=True)
        return cls(
            greedy=numbers[:, 0] > 0,
            temperature=numbers[:, 1].float(),
            top_k=numbers[:, 2].long(),
            top_p=numbers[:, 3].float(),
            min_p=numbers[:, 4].float(),
            all_greedy=all(s.greedy for s in settings),
            max_top_k=max((s.top_k for s in settings if not s.greedy), default=0),
            any_top_p=any(s.top_p < 1 for s in settings if not s.greedy),
            any_min_p=any(s.min_p > 0 for s in settings if not s.greedy),
        )


def standardise(logits: Tensor, rows: SamplingRows) -> Tensor:
    """The distribution that is sampled from: temperature, then top-k, top-p, min-p, in float32.

    Each filter is a threshold on the logits, so tokens that tie at the edge are kept together and the result does not
    depend on a sort's order. A greedy row is one-hot at its most likely token (the first, if several tie).

    Args:
        logits: [B, T, V], any float dtype.
        rows: settings, B of them.

    Returns:
        Probabilities [B, T, V], float32, each [V] summing to 1.
    """
    logits = logits.float()
    if rows.all_greedy:
        return one_hot(logits.argmax(-1), logits.shape[-1])
    scaled = logits / rows.temperature[:, None, None]
    if rows.max_top_k:
        scaled = scaled.masked_fill(scaled < _top_k_threshold(scaled, rows), -torch.inf)
    if rows.any_top_p:
        scaled = scaled.masked_fill(scaled < _top_p_threshold(scaled, rows), -torch.inf)
    if rows.any_min_p:
        edge = scaled.amax(-1, keepdim=True) + rows.min_p.log()[:, None, None]
        scaled = scaled.masked_fill(scaled < edge, -torch.inf)
    probabilities = scaled.softmax(-1)
    if not rows.greedy.is_cuda and not bool(rows.greedy.any()):
        return probabilities
    return torch.where(rows.greedy[:, None, None], one_hot(logits.argmax(-1), logits.shape[-1]), probabilities)


def one_hot(tokens: Tensor, vocabulary: int) -> Tensor:
    """The distributions [..., vocabulary], float32, that have all probability on `tokens` [...]."""
    zeros = torch.zeros(*tokens.shape, vocabulary, device=tokens.device)
    return zeros.scatter_(-1, tokens[..., None], 1.0)


def draw(weights: Tensor, u: Tensor) -> Tensor:
    """The tokens that uniforms pick from distributions, by inversion of the cumulative sum in float64.

    Args:
        weights: [B, V], not negative; need not sum to 1.
        u: [B], float64 in [0, 1).

    Returns:
        Token ids [B], int64; never a token of weight 0 where any weight is positive.
    """
    cumulative = weights.double().cumsum(-1)
    total = cumulative[:, -1]
    # Rounding must not lift u * total to the total itself, which no token lies above.
    point = torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, point[:, None], right=True).squeeze(-1).clamp_(max=weights.shape[-1] - 1)


def _top_k_threshold(scaled: Tensor, rows: SamplingRows) -> Tensor:
    """The k-th largest logit, [B, T, 1]; -inf for rows without top-k."""
    k = min(rows.max_top_k, scaled.shape[-1])
    head = scaled.topk(k).values
    index = (rows.top_k.clamp(1, k) - 1)[:, None, None].expand(-1, scaled.shape[1], 1)
    return head.gather(-1, index).masked_fill((rows.top_k == 0)[:, None, None], -torch.inf)


def _top_p_threshold(scaled: Tensor, rows: SamplingRows) -> Tensor:
    """The smallest logit of the smallest set that reaches top-p, [B, T, 1]; -inf for rows without top-p."""
    size = scaled.shape[-1]
    top_p = rows.top_p[:, None, None]
    normaliser = scaled.logsumexp(-1, keepdim=True)
    if size > _HEAD and not scaled.is_cuda:
        head = scaled.topk(_HEAD).values
        if not bool(((head - normaliser).exp().sum(-1, keepdim=True) < top_p).any()):
            return _nucleus_edge(head, normaliser, top_p)
    return _nucleus_edge(scaled.sort(-1, descending=True).values, normaliser, top_p)


def _nucleus_edge(ordered: Tensor, normaliser: Tensor, top_p: Tensor) -> Tensor:
    """The last of the descending logits [B, T, n] whose predecessors have less than top-p of probability."""
    probabilities = (ordered - normaliser).exp()
    before = probabilities.cumsum(-1) - probabilities
    last = ((before < top_p).sum(-1, keepdim=True) - 1).clamp_(min=0)
    return ordered.gather(-1, last).masked_fill(top_p >= 1, -torch.inf)
