"""Sampler: logits to the standardised distribution, and a distribution to a token.

Every way of sampling is sampling from an adjusted distribution (Leviathan et al. 2023, section 2.2). This module makes
that distribution for the target and the drafters alike, so p and q go through the same steps. Context-dependent
adjustments (`engine.sampling.penalties`) are applied to the logits before.

Results are batch-invariant: no sum here may be split in a way that depends on the batch size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.request import COLDEST, Sampling
from specchat.engine.runner.to_device import to_device

_BLOCK = 64
"""Vocabulary entries per block in two-step sums and maxima."""
_HEAD = 256
"""Largest logits that filters look at first on the CPU; they contain nearly every nucleus."""
_NECK = 4096
"""Largest logits that are sorted if the head is too short, before all are."""
_GROUP = 32
"""Logits per group in the search for the head: group maxima are compared first."""


_SMALL_TOP_K = 64
"""On a GPU, so many of the largest logits are found without sorting all."""


class SamplingFlags(NamedTuple):
    """What of the sampling settings no row of a batch uses, known on the host."""

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
    lenient_greedy: bool
    """Whether any greedy row has a lenience below 1."""

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
            lenient_greedy=any(s.greedy and not s.lossless for s in settings),
        )

    def coarse(self, rows: int) -> SamplingFlags:
        """Flags that serve as well and of which there are few (`coarse_flags`), for a region of so many rows."""
        greedy, plain, small, filtered = coarse_flags(rows)
        if self.lenient:
            return ANY
        if self.all_greedy:
            return greedy
        if not (self.max_top_k or self.any_top_p or self.any_min_p):
            return plain
        return small if self.all_top_k and self.max_top_k <= _SMALL_TOP_K else filtered

    @property
    def strict(self) -> SamplingFlags:
        """The same without lenience, which drafts know nothing of."""
        return self._replace(lenient=False, lenient_greedy=False)


ANY = SamplingFlags(
    lenient=True,
    all_greedy=False,
    any_greedy=True,
    all_filtered=True,
    all_top_k=False,
    max_top_k=1 << 31,
    any_top_p=True,
    any_min_p=True,
    lenient_greedy=True,
)
"""Flags that serve for any rows."""


@lru_cache
def coarse_flags(rows: int) -> tuple[SamplingFlags, SamplingFlags, SamplingFlags, SamplingFlags]:
    """Flags that graphs are made for: all greedy, no filters, a small top-k beside others, all filters. In the last
    three some rows may be greedy, where there are several."""
    filtered = ANY._replace(lenient=False, any_greedy=rows > 1, lenient_greedy=False)
    plain = filtered._replace(all_filtered=False, max_top_k=0, any_top_p=False, any_min_p=False)
    small = filtered._replace(all_top_k=True, max_top_k=_SMALL_TOP_K)
    return plain._replace(all_greedy=True, any_greedy=True), plain, small, filtered


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Sampling settings of a batch as tensors [B], and flags for what no row uses."""

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

    @classmethod
    def of(cls, settings: Sequence[Sampling], device: torch.device) -> SamplingRows:
        """Settings of one batch, row by row; cached, so the tensors are shared."""
        return cls._of(tuple(settings), device)

    @classmethod
    @lru_cache(maxsize=64)
    def _of(cls, settings: tuple[Sampling, ...], device: torch.device) -> SamplingRows:
        return cls.from_numbers(to_device(setting_numbers(settings), device), SamplingFlags.of(settings))

    @classmethod
    def from_numbers(cls, numbers: Tensor, flags: SamplingFlags) -> SamplingRows:
        """Settings from `numbers` [B, `NUMBERS`], float64, on the device."""
        return cls(
            greedy=numbers[:, 0] > 0,
            temperature=numbers[:, 1].float(),
            top_k=numbers[:, 2].long(),
            top_p=numbers[:, 3],
            min_p=numbers[:, 4],
            lenience=numbers[:, 5] if flags.lenient else None,
            flags=flags,
        )


NUMBERS = 6
"""Numbers per row that settings are sent to the device as."""


def setting_numbers(settings: Sequence[Sampling]) -> NDArray[np.float64]:
    """[B, `NUMBERS`]: greedy, temperature, top-k, top-p, min-p, lenience."""
    return np.array([_numbers(s) for s in settings], dtype=np.float64)


def _numbers(s: Sampling) -> tuple[float, ...]:
    if s.greedy:
        return 1.0, 1.0, 1, 1.0, 0.0, s.lenience
    return 0.0, max(s.temperature, COLDEST), min(s.top_k, 1 << 31), s.top_p, s.min_p, s.lenience


def standardise(logits: Tensor, rows: SamplingRows) -> Tensor:
    """The standardised distribution: temperature, then top-k, top-p, min-p, in float32.

    Each filter is a threshold on the logits, so tokens tied at the threshold are kept together and the result does not
    depend on the order of a sort. A greedy row is one-hot at its most likely token (the first, if several tie).

    Where logits are not finite (`broken`) the distribution of that position is NaN; other positions are unaffected.

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
    elif scaled.is_cuda:
        probabilities = _filtered(scaled.flatten(0, 1), _Filters.of(rows, scaled.shape[1])).view(scaled.shape)
    else:
        filters = _Filters.of(rows, scaled.shape[1])
        probabilities = _filtered_by_head(scaled.flatten(0, 1), filters, rows.flags.all_filtered).view(scaled.shape)
    if not rows.flags.any_greedy:
        return probabilities
    return torch.where(rows.greedy[:, None, None], one_hot(most_likely(logits), logits.shape[-1]), probabilities)


def most_likely(logits: Tensor) -> Tensor:
    """Argmax [...] of logits [..., V]: the first of several, the first NaN if there is one.

    On a CPU, `torch.argmax` takes several times as long as finding the maximum per block first.
    """
    if logits.is_cuda or logits.shape[-1] % _BLOCK:
        return logits.argmax(-1) if logits.is_cuda else logits.float().argmax(-1)
    blocks = logits.reshape(*logits.shape[:-1], -1, _BLOCK)
    block = blocks.amax(-1).argmax(-1, keepdim=True)
    inside = blocks.gather(-2, block[..., None].expand(*block.shape, _BLOCK)).squeeze(-2).argmax(-1)
    return block.squeeze(-1) * _BLOCK + inside


def broken(logits: Tensor, lengths: Tensor) -> Tensor:
    """Rows [B], bool, whose logits [B, T, V] give no distribution somewhere: NaN, +inf, or all -inf.

    Looked at are each row's first `lengths` + 1 positions, [B], int64.
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
    blocks = _blocks(weights)
    cumulative = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    block, rest = _locate(cumulative, u * cumulative[:, -1])
    rows = torch.arange(len(block), device=block.device)
    inside, _ = _locate(blocks[rows, block].double().cumsum(-1), rest)
    return (block * _BLOCK + inside).clamp_(max=weights.shape[-1] - 1)


def _locate(cumulative: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
    """First index at which cumulative sums [B, n] exceed points [B], and the offset of each point into that entry."""
    total = cumulative[:, -1]
    # Rounding must not raise a point to the total, which no entry exceeds.
    point = torch.minimum(point, torch.nextafter(total, torch.zeros_like(total)))
    index = torch.searchsorted(cumulative, point[:, None], right=True).clamp_(max=cumulative.shape[-1] - 1)
    before = cumulative.gather(-1, (index - 1).clamp_(min=0)).masked_fill_(index == 0, 0.0)
    return index.squeeze(-1), point - before.squeeze(-1)


def _blocks(weights: Tensor) -> Tensor:
    """Weights [..., V] reshaped to [..., n, `_BLOCK`], zero-padded."""
    missing = -weights.shape[-1] % _BLOCK
    whole = torch.nn.functional.pad(weights, (0, missing)) if missing else weights
    return whole.reshape(*weights.shape[:-1], -1, _BLOCK)


class _Filters(NamedTuple):
    """Filter settings of N positions, tensors [N, 1]."""

    top_k: Tensor
    top_p: Tensor
    log_min_p: Tensor
    any_top_k: bool
    any_top_p: bool
    any_min_p: bool
    all_top_k: bool
    """Whether top-k is on wherever top-p is, so top-p needs only what top-k keeps."""
    max_top_k: int
    """At least 1."""

    @classmethod
    def of(cls, rows: SamplingRows, positions: int) -> _Filters:
        """Filters of a batch with T = `positions` per row; N = B·T."""
        top_k, top_p, log_min_p = (
            t.repeat_interleave(positions)[:, None] for t in (rows.top_k, rows.top_p, rows.min_p.log().float())
        )
        return cls(
            top_k,
            top_p,
            log_min_p,
            rows.flags.max_top_k > 0 or rows.flags.any_greedy,
            rows.flags.any_top_p,
            rows.flags.any_min_p,
            rows.flags.all_top_k or not rows.flags.any_top_p,
            max(rows.flags.max_top_k, 1),
        )

    def at(self, index: Tensor) -> _Filters:
        """Filters of a subset of positions."""
        return self._replace(top_k=self.top_k[index], top_p=self.top_p[index], log_min_p=self.log_min_p[index])


def _filtered_by_head(scaled: Tensor, filters: _Filters, all_filtered: bool) -> Tensor:
    """`_filtered` on the CPU, using only the largest logits for positions whose kept tokens are all among them.

    The choice depends on a position's own logits and settings, not on the batch.
    """
    values, tokens = _head(scaled)
    kept = values >= _edge(values, _shares(scaled, values, filters), filters)
    if filters.any_min_p:
        kept &= values - values[:, :1] >= filters.log_min_p
    # NaN and inf sort first and are kept, so that the position is recognised as broken.
    kept |= ~(values < torch.inf)
    probabilities = torch.zeros_like(scaled).scatter_(-1, tokens, values.where(kept, -torch.inf).softmax(-1))
    if values.shape[-1] == scaled.shape[-1]:
        return probabilities
    beyond = kept[:, -1] | _short(values, filters).squeeze(-1)
    if not all_filtered:
        plain = ((filters.top_k == 0) & (filters.top_p >= 1) & filters.log_min_p.isneginf()).squeeze(-1)
        beyond &= ~plain
        probabilities[plain] = scaled[plain].softmax(-1)
    if bool(beyond.any()):
        probabilities[beyond] = _filtered(scaled[beyond], filters.at(beyond))
    return probabilities


def _head(scaled: Tensor) -> tuple[Tensor, Tensor]:
    """The `_HEAD` largest logits of each position of [N, V] in descending order, and their tokens; [N, head] each.

    They are in the groups with the largest maxima, so few logits have to be sorted.
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


def _filtered(scaled: Tensor, filters: _Filters) -> Tensor:
    """Probabilities [N, V] of logits [N, V] after the filters."""
    above = ~(scaled < torch.inf)
    if filters.any_top_k or filters.any_top_p:
        above |= scaled >= (_edge_by_torch if scaled.is_cuda else _edge_by_numpy)(scaled, filters)
        if filters.any_min_p:
            above &= scaled - scaled.amax(-1, keepdim=True) >= filters.log_min_p
    else:
        above |= scaled - scaled.amax(-1, keepdim=True) >= filters.log_min_p
    return scaled.where(above, -torch.inf).softmax(-1)


def _edge_by_torch(scaled: Tensor, filters: _Filters) -> Tensor:
    """`_edge` of whole positions [N, V]."""
    if filters.all_top_k:
        values = scaled.topk(min(filters.max_top_k, scaled.shape[-1])).values
    else:
        values = scaled.sort(-1, descending=True).values
    return _edge(values, _shares(scaled, values, filters), filters)


def _edge_by_numpy(scaled: Tensor, filters: _Filters) -> Tensor:
    """As `_edge_by_torch`, with numpy, whose sort is many times faster on a CPU."""
    size = scaled.shape[-1]
    array = scaled.numpy()
    if size > _NECK:
        array = np.partition(array, size - _NECK)[:, -_NECK:]
    values = torch.from_numpy(np.sort(array)[:, ::-1].copy())
    edge = _edge(values, _shares(scaled, values, filters), filters)
    short = ((values[:, -1:] >= edge) & ~edge.isneginf()) | _short(values, filters)
    if values.shape[-1] < size and bool(short.any()):
        index = short.squeeze(-1)
        scaled, filters = scaled[index], filters.at(index)
        values = torch.from_numpy(np.sort(scaled.numpy())[:, ::-1].copy())
        edge[index] = _edge(values, _shares(scaled, values, filters), filters)
    return edge


def _short(values: Tensor, filters: _Filters) -> Tensor:
    """Where top-p takes its share of more logits than the n largest, which `values` [N, n] holds: [N, 1], bool."""
    return (filters.top_k > values.shape[-1]) & (filters.top_p < 1)


def _shares(scaled: Tensor, values: Tensor, filters: _Filters) -> Tensor:
    """Probabilities [N, n] of the n largest logits `values` [N, n]; up to a factor where top-k is on."""
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
    if filters.any_top_p:
        mass = shares.double().masked_fill_(values < edge, 0.0)
        cumulative = mass.cumsum(-1)
        enough = filters.top_p * torch.where(filters.top_k > 0, cumulative[:, -1:], 1.0)
        last = ((cumulative - mass < enough).sum(-1, keepdim=True) - 1).clamp_(min=0)
        nucleus = values.gather(-1, last).masked_fill_(filters.top_p >= 1, -torch.inf)
        edge = torch.maximum(edge, nucleus)
    return edge
