"""Sampling settings of a batch: as tensors on the device, and flags for settings that no row uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.engine.device.device import to_device
from specchat.engine.sampling_settings import COLDEST, Sampling

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
