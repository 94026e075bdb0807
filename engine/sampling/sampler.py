"""Sampler: from logits to the standardised distribution, and from a distribution to tokens.

Every way of sampling is sampling from an adjusted distribution (Leviathan et al. 2023, section 2.2). Target and
drafters both use this module, so p and q are computed in the same way. Penalties (`engine.sampling.penalties`) are
applied to the logits before.

Results are batch-invariant: no sum may be split in a way that depends on the batch size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from specchat.engine.sampling.filters import filtered
from specchat.engine.sampling.sampling_rows import SamplingRows
from specchat.engine.sampling.xtc import without_top_choices

_BLOCK = 64
"""Vocabulary entries per block in two-step sums and maxima."""


def standardise(logits: Tensor, rows: SamplingRows) -> Tensor:
    """The standardised distribution: temperature, then top-k, top-p, min-p, XTC, in float32.

    A greedy row is one-hot at its most likely token (the first, if several tie). The distribution of a position with
    logits that are not finite (`broken`) is NaN; other positions are unaffected.

    Args:
        logits: [B, T, V], any float dtype; bias and penalties already applied.
        rows: B settings.

    Returns:
        Probabilities [B, T, V], float32, each [V] summing to 1.
    """
    if rows.flags.all_greedy:
        return one_hot(most_likely(logits), logits.shape[-1])
    scaled = logits.to(torch.float32, copy=True).div_(rows.temperature[:, None, None])
    if not (rows.flags.max_top_k or rows.flags.any_top_p or rows.flags.any_min_p):
        probabilities = scaled.softmax(-1)
    else:
        probabilities = filtered(scaled, rows)
    if rows.xtc is not None:
        probabilities = without_top_choices(probabilities, rows.xtc)
    if not rows.flags.any_greedy:
        return probabilities
    return torch.where(rows.greedy[:, None, None], one_hot(most_likely(logits), logits.shape[-1]), probabilities)


def most_likely(logits: Tensor) -> Tensor:
    """Argmax [...] of logits [..., V]: the first maximum, or the first NaN.

    On a CPU, finding the maximum per block first is several times faster than `torch.argmax`.
    """
    if logits.is_cuda or logits.shape[-1] % _BLOCK:
        return logits.argmax(-1) if logits.is_cuda else logits.float().argmax(-1)
    blocks = logits.reshape(*logits.shape[:-1], -1, _BLOCK)
    block = blocks.amax(-1).argmax(-1, keepdim=True)
    inside = blocks.gather(-2, block[..., None].expand(*block.shape, _BLOCK)).squeeze(-2).argmax(-1)
    return block.squeeze(-1) * _BLOCK + inside


def broken(logits: Tensor, lengths: Tensor) -> Tensor:
    """Rows [B], bool, with a position whose logits [B, T, V] give no distribution: NaN, +inf, or all -inf.

    Only each row's first `lengths` + 1 positions ([B], int64) count.
    """
    positions = torch.arange(logits.shape[1], device=logits.device)
    return (logits.amax(-1).isfinite().logical_not_() & (positions <= lengths[:, None])).any(-1)


def one_hot(tokens: Tensor, vocabulary: int) -> Tensor:
    """One-hot distributions [..., V], float32, of tokens [...]."""
    zeros = torch.zeros(*tokens.shape, vocabulary, device=tokens.device)
    return zeros.scatter_(-1, tokens[..., None], 1.0)


def draw(weights: Tensor, u: Tensor) -> Tensor:
    """Sample one token per row by inverting the cumulative sum, in float64.

    Finds the block of the vocabulary first, then the token in it; tokens are ordered by id.

    Args:
        weights: [B, V], not negative; need not sum to 1.
        u: [B], float64 uniforms in [0, 1).

    Returns:
        Token ids [B], int64; never a token of weight 0 if any weight is positive.
    """
    missing = -weights.shape[-1] % _BLOCK
    blocks = (pad(weights, (0, missing)) if missing else weights).reshape(len(weights), -1, _BLOCK)
    cumulative = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    block, rest = _locate(cumulative, u * cumulative[:, -1])
    rows = torch.arange(len(block), device=block.device)
    inside, _ = _locate(blocks[rows, block].double().cumsum(-1), rest)
    return (block * _BLOCK + inside).clamp_(max=weights.shape[-1] - 1)


def draw_different(weights: Tensor, u: Tensor) -> Tensor:
    """Draw K tokens without replacement from distributions [B, P, V] with uniforms [B, P, K]: [B, P, K], int64.

    If a distribution has fewer than K tokens, the last ones are undefined.
    """
    shape, left = u.shape, weights.flatten(0, 1)
    drawn: list[Tensor] = []
    for draws in u.flatten(0, 1).unbind(1):
        if drawn:
            left = left.scatter(1, drawn[-1][:, None], 0.0)
        drawn.append(draw(left, draws))
    return torch.stack(drawn, 1).view(shape)


def _locate(cumulative: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
    """First index at which cumulative sums [B, n] exceed points [B], and the offset of each point into that entry."""
    total = cumulative[:, -1]
    # Rounding must not raise a point to the total, which no entry exceeds.
    point = torch.minimum(point, torch.nextafter(total, torch.zeros_like(total)))
    index = torch.searchsorted(cumulative, point[:, None], right=True).clamp_(max=cumulative.shape[-1] - 1)
    before = cumulative.gather(-1, (index - 1).clamp_(min=0)).masked_fill_(index == 0, 0.0)
    return index.squeeze(-1), point - before.squeeze(-1)
