"""Sampler: from logits to the standardised distribution, and from a distribution to tokens.

Every way of sampling is sampling from an adjusted distribution (Leviathan et al. 2023, section 2.2). Target and
drafters both use this module, so p and q are computed in the same way. Penalties (`engine.sampling.penalties`) are
applied to the logits before. Top-k, top-p and min-p are thresholds on the logits, so tokens tied at the threshold are
kept together and the result does not depend on the order of a sort.

Results are batch-invariant: no sum may be split in a way that depends on the batch size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from specchat.engine.device.device import to_device
from specchat.engine.sampling.xtc import without_top_choices
from specchat.engine.settings import COLDEST, Sampling

_SMALL_TOP_K = 64
"""Largest top-k for which a graph selects the largest logits first."""


class SamplingFlags(NamedTuple):
    """Flags for the sampling settings that the rows of a batch use, known on the host."""

    lenient: bool
    """Whether any row has a lenience below 1."""
    all_greedy: bool
    any_greedy: bool
    all_filtered: bool
    """Whether every row that is not greedy uses top-k, top-p or min-p."""
    all_top_k: bool
    """Whether every row that is not greedy uses top-k."""
    max_top_k: int
    """Largest top-k of the rows that are not greedy; 0 if none uses it."""
    any_top_p: bool
    any_min_p: bool
    any_xtc: bool

    @classmethod
    def of(cls, settings: Sequence[Sampling]) -> SamplingFlags:
        """Flags of a batch."""
        free = [s for s in settings if not s.greedy]
        return cls(
            lenient=not all(s.lossless for s in settings),
            all_greedy=not free,
            any_greedy=len(free) < len(settings),
            all_filtered=all(s.top_k > 0 or s.top_p < 1 or s.min_p > 0 for s in free),
            all_top_k=all(s.top_k > 0 for s in free),
            max_top_k=min(max((s.top_k for s in free), default=0), 1 << 31),
            any_top_p=any(s.top_p < 1 for s in free),
            any_min_p=any(s.min_p > 0 for s in free),
            any_xtc=any(s.xtc for s in free),
        )

    def coarse(self, rows: int) -> SamplingFlags:
        """The most specific flags among `coarse_flags` that cover this batch, for a graph of `rows` rows."""
        greedy, plain, small, _ = coarse_flags(rows)
        if self.lenient or self.any_xtc:
            return ANY
        if self.all_greedy:
            return greedy
        if not (self.max_top_k or self.any_top_p or self.any_min_p):
            return plain
        return small if self.all_top_k and self.max_top_k <= _SMALL_TOP_K else ANY

    @property
    def strict(self) -> SamplingFlags:
        """Flags without lenience, which does not apply to drafts."""
        return self._replace(lenient=False)


ANY = SamplingFlags(
    lenient=True,
    all_greedy=False,
    any_greedy=True,
    all_filtered=True,
    all_top_k=False,
    max_top_k=1 << 31,
    any_top_p=True,
    any_min_p=True,
    any_xtc=True,
)
"""Flags that cover all settings."""


@lru_cache
def coarse_flags(rows: int) -> tuple[SamplingFlags, SamplingFlags, SamplingFlags, SamplingFlags]:
    """Flags for which graphs are captured: all greedy, no filters, small top-k with any other filters, any.

    The second and third cover greedy rows too if there are several rows.
    """
    small = ANY._replace(lenient=False, any_greedy=rows > 1, all_top_k=True, max_top_k=_SMALL_TOP_K, any_xtc=False)
    plain = small._replace(all_filtered=False, all_top_k=False, max_top_k=0, any_top_p=False, any_min_p=False)
    return plain._replace(all_greedy=True, any_greedy=True), plain, small, ANY


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Sampling settings of a batch as tensors [B], and flags for settings that no row uses."""

    greedy: Tensor
    """bool."""
    temperature: Tensor
    """float32; 1 for greedy rows."""
    top_k: Tensor
    """int64; 1 for greedy rows, 0 where off."""
    top_p: Tensor
    """float64; 1 where off."""
    min_p: Tensor
    """float64; 0 where off."""
    lenience: Tensor | None
    """float64; None if all are 1."""
    flags: SamplingFlags
    xtc: Tensor | None = None
    """[B, n], float64, thresholds of XTC at each of the n positions, or one for all; None if no row uses it."""

    @classmethod
    def of(cls, settings: Sequence[Sampling], device: torch.device) -> SamplingRows:
        """Settings of one batch, row by row; cached, so the tensors are shared."""
        return cls._of(tuple(settings), device)

    @classmethod
    @lru_cache(maxsize=64)
    def _of(cls, settings: tuple[Sampling, ...], device: torch.device) -> SamplingRows:
        return cls.from_numbers(to_device(setting_numbers(settings), device), SamplingFlags.of(settings))

    @classmethod
    def from_numbers(cls, numbers: Tensor, flags: SamplingFlags, xtc: Tensor | None = None) -> SamplingRows:
        """Settings from `numbers` [B, `NUMBERS`], float64, on the device."""
        return cls(
            greedy=numbers[:, 0] > 0,
            temperature=numbers[:, 1].float(),
            top_k=numbers[:, 2].long(),
            top_p=numbers[:, 3],
            min_p=numbers[:, 4],
            lenience=numbers[:, 5] if flags.lenient else None,
            flags=flags,
            xtc=xtc,
        )

    def at(self, positions: Tensor) -> SamplingRows:
        """The settings of some of the positions, [B, n], int64."""
        return self if self.xtc is None else replace(self, xtc=self.xtc.gather(1, positions))


NUMBERS = 6
"""Columns of `setting_numbers`."""


def setting_numbers(settings: Sequence[Sampling]) -> NDArray[np.float64]:
    """[B, `NUMBERS`]: greedy, temperature, top-k, top-p, min-p, lenience."""
    return np.array([_numbers(s) for s in settings], dtype=np.float64)


def _numbers(s: Sampling) -> tuple[float, ...]:
    if s.greedy:
        return 1.0, 1.0, 1, 1.0, 0.0, s.lenience
    return 0.0, max(s.temperature, COLDEST), min(s.top_k, 1 << 31), s.top_p, s.min_p, s.lenience


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
