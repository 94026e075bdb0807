"""Top-k, top-p and min-p: from logits to the distribution of the tokens that are kept.

Each filter is a threshold on the logits, so tokens tied at the threshold are kept together and the result does not
depend on the order of a sort.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specchat.engine.sampling.sampling_rows import SamplingFlags, SamplingRows

_HEAD = 256
"""Number of largest logits that the CPU sorts first; they contain nearly every nucleus."""
_GROUP = 32
"""Logits per group in the search for the head, which compares group maxima first."""
_HALF = 16
_BINS = 1 << _HALF
_WEIGHT_BITS = 44
"""Bits of a weight of 1; the weights of 2¹⁸ numbers fit into 63 bits."""


def filtered(scaled: Tensor, rows: SamplingRows) -> Tensor:
    """Probabilities [B, T, V], float32, of logits [B, T, V] at their temperature, after the rows' filters."""
    flat, filters = scaled.flatten(0, 1), _Filters.of(rows, scaled.shape[1])
    probabilities = _filtered_whole(flat, filters) if scaled.is_cuda else _filtered_by_head(flat, filters)
    return probabilities.view(scaled.shape)


class _Filters(NamedTuple):
    """Filter settings of N positions, tensors [N, 1]."""

    top_k: Tensor
    top_p: Tensor
    log_min_p: Tensor
    flags: SamplingFlags
    """Flags of the batch that the positions are from."""

    @classmethod
    def of(cls, rows: SamplingRows, positions: int) -> _Filters:
        """Filters of a batch with T = `positions` per row; N = B·T."""
        top_k, top_p, log_min_p = (
            t.repeat_interleave(positions)[:, None] for t in (rows.top_k, rows.top_p, rows.min_p.log().float())
        )
        return cls(top_k, top_p, log_min_p, rows.flags)

    @property
    def any_top_k(self) -> bool:
        """Whether top-k is on in some row: it is in greedy ones."""
        return self.flags.max_top_k > 0 or self.flags.any_greedy

    @property
    def all_top_k(self) -> bool:
        """Whether top-k is on in all rows with top-p, so that top-p needs only what top-k keeps."""
        return self.flags.all_top_k or not self.flags.any_top_p

    def at(self, index: Tensor) -> _Filters:
        """Filters of a subset of positions."""
        return self._replace(top_k=self.top_k[index], top_p=self.top_p[index], log_min_p=self.log_min_p[index])


def _filtered_by_head(scaled: Tensor, filters: _Filters) -> Tensor:
    """Result of `_filtered_whole`, from only the largest logits of positions whose kept tokens are all among them.

    Batch-invariant: the choice depends only on a position's own logits and settings.
    """
    values, tokens = _head(scaled)
    kept = values >= _edge(values, _shares(scaled, values, filters), filters)
    if filters.flags.any_min_p:
        kept &= values - values[:, :1] >= filters.log_min_p
    # NaN and inf sort first and are kept, so that `broken` recognises the position.
    kept |= ~(values < torch.inf)
    probabilities = torch.zeros_like(scaled).scatter_(-1, tokens, values.where(kept, -torch.inf).softmax(-1))
    if values.shape[-1] == scaled.shape[-1]:
        return probabilities
    unknown = (filters.top_k > values.shape[-1]) & (filters.top_p < 1)  # top-p depends on more logits than the head
    beyond = kept[:, -1] | unknown.squeeze(-1)
    if not filters.flags.all_filtered:
        plain = ((filters.top_k == 0) & (filters.top_p >= 1) & filters.log_min_p.isneginf()).squeeze(-1)
        beyond &= ~plain
        probabilities[plain] = scaled[plain].softmax(-1)
    if bool(beyond.any()):
        probabilities[beyond] = _filtered_whole(scaled[beyond], filters.at(beyond))
    return probabilities


def _head(scaled: Tensor) -> tuple[Tensor, Tensor]:
    """The `_HEAD` largest logits of each position of [N, V] in descending order, and their tokens; [N, head] each.

    They are in the groups with the largest maxima, so only these groups are sorted.
    """
    size = scaled.shape[-1]
    groups = size // _GROUP
    if groups < 2 * _HEAD:
        values, tokens = scaled.topk(min(_HEAD, size))
        return values, tokens
    maxima = scaled[:, : groups * _GROUP].reshape(-1, _GROUP, groups).amax(-2)
    first = maxima.topk(_HEAD, sorted=False).indices
    tokens = (first[:, None] + torch.arange(0, groups * _GROUP, groups)[:, None]).flatten(1)
    if groups * _GROUP < size:
        tokens = torch.cat([tokens, torch.arange(groups * _GROUP, size).expand(len(tokens), -1)], 1)
    values, places = scaled.gather(-1, tokens).topk(_HEAD)
    return values, tokens.gather(-1, places)


def _filtered_whole(scaled: Tensor, filters: _Filters) -> Tensor:
    """Probabilities [N, V] of logits [N, V] after the filters."""
    above = ~(scaled < torch.inf)
    if filters.any_top_k or filters.flags.any_top_p:
        above |= scaled >= _whole_edge(scaled, filters)
        if filters.flags.any_min_p:
            above &= scaled - scaled.amax(-1, keepdim=True) >= filters.log_min_p
    else:
        above |= scaled - scaled.amax(-1, keepdim=True) >= filters.log_min_p
    return scaled.where(above, -torch.inf).softmax(-1)


def _whole_edge(scaled: Tensor, filters: _Filters) -> Tensor:
    """`_edge` of whole positions [N, V]. Nothing is sorted: in a CUDA graph that is done whatever the nucleus."""
    if scaled.is_cuda and filters.all_top_k:
        values = scaled.topk(min(max(filters.flags.max_top_k, 1), scaled.shape[-1])).values
        return _edge(values, _shares(scaled, values, filters), filters)
    edge = torch.full_like(scaled[:, :1], -torch.inf)
    if filters.any_top_k:
        one, most = torch.ones_like(filters.top_k), filters.top_k.clamp(1, scaled.shape[-1])
        edge = mass_threshold(scaled, one, most).masked_fill_(filters.top_k == 0, -torch.inf)
    if filters.flags.any_top_p:
        shares = (scaled - scaled.amax(-1, keepdim=True)).exp().masked_fill_(scaled < edge, 0.0)
        weights = (shares.double() * (1 << _WEIGHT_BITS)).long()
        enough = (filters.top_p * weights.sum(-1, keepdim=True)).ceil().long().clamp_(min=1)
        nucleus = mass_threshold(scaled, weights, enough).masked_fill_(filters.top_p >= 1, -torch.inf)
        edge = torch.maximum(edge, nucleus)
    return edge


def _shares(scaled: Tensor, values: Tensor, filters: _Filters) -> Tensor:
    """Probabilities [N, n] of the n largest logits `values` [N, n]; unnormalised where top-k is on."""
    shares = (values - values[:, :1]).exp()
    if filters.all_top_k:
        return shares
    return shares * scaled.softmax(-1).amax(-1, keepdim=True).masked_fill_(filters.top_k > 0, 1.0)


def _edge(values: Tensor, shares: Tensor, filters: _Filters) -> Tensor:
    """Threshold logit of top-k and top-p, [N, 1]: the smallest one kept; -inf where neither is on.

    Args:
        values: the largest logits [N, n], in descending order.
        shares: their probabilities [N, n].
        filters: of the N positions; a threshold beyond the n-th logit is reported as the n-th logit.
    """
    edge = torch.full_like(values[:, :1], -torch.inf)
    if filters.any_top_k:
        last = filters.top_k.clamp(1, values.shape[-1]) - 1
        edge = values.gather(-1, last).masked_fill_(filters.top_k == 0, -torch.inf)
    if filters.flags.any_top_p:
        mass = shares.double().masked_fill_(values < edge, 0.0)
        cumulative = mass.cumsum(-1)
        enough = filters.top_p * torch.where(filters.top_k > 0, cumulative[:, -1:], 1.0)
        last = ((cumulative - mass < enough).sum(-1, keepdim=True) - 1).clamp_(min=0)
        nucleus = values.gather(-1, last).masked_fill_(filters.top_p >= 1, -torch.inf)
        edge = torch.maximum(edge, nucleus)
    return edge


def mass_threshold(values: Tensor, weights: Tensor, enough: Tensor) -> Tensor:
    """The largest of each row's values such that those not below it weigh enough; [N, 1]. Nothing is sorted.

    Two histograms find it, over the high and then the low half of the bits of a float32 (a radix selection, as in Alabi
    et al. 2012). Weights are integers, so a sum does not depend on the order of its terms, or on the batch.

    Args:
        values: [N, V], float32.
        weights: [N, V], int64, not negative.
        enough: [N, 1], int64, from 1 to the weight of all.
    """
    bits = (values + 0.0).view(torch.int32)  # -0.0 becomes 0.0, its equal
    keys = _ordered(bits).long()
    high = (keys >> _HALF) + _BINS // 2
    first, left = _bin_of(high, weights, enough)
    inside = high == first
    # Numbers outside weigh nothing; in different bins they do not wait for one counter.
    any_bin = torch.arange(keys.shape[-1], device=keys.device) % _BINS
    last, _ = _bin_of(torch.where(inside, keys & (_BINS - 1), any_bin), weights * inside, left)
    return _ordered(((first - _BINS // 2 << _HALF) | last).int()).view(torch.float32)


def _ordered(bits: Tensor) -> Tensor:
    """Integers in the order of the floats with these bits; of such integers, the bits."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _bin_of(bins: Tensor, weights: Tensor, enough: Tensor) -> tuple[Tensor, Tensor]:
    """The last bin [N, 1] with which those above it weigh enough, and how much of that they leave to it."""
    sums = torch.zeros(len(bins), _BINS, dtype=torch.long, device=bins.device)
    up_to = sums.scatter_add_(1, bins, weights.expand_as(bins)).cumsum(-1)
    above = up_to[:, -1:] - up_to
    found = (above >= enough).sum(-1, keepdim=True).clamp_(max=_BINS - 1)  # beyond them where weights are no numbers
    return found, enough - above.gather(-1, found)
