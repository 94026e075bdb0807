"""Settings of sampled rows as the kernels read them."""

from __future__ import annotations

from ctypes import _Pointer, pointer
from functools import lru_cache
from math import inf, log

from specchat.engine.kernels.structures import CSampling
from specchat.engine.sampling_settings import COLDEST, Sampling


@lru_cache(maxsize=64)
def c_settings(sampling: Sampling) -> _Pointer[CSampling]:
    """Pointer to `sk_sampling`, kept alive by the cache."""
    return pointer(
        CSampling(
            temperature=max(sampling.temperature, COLDEST),
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            xtc_probability=sampling.xtc_probability if sampling.xtc else 0.0,
            xtc_threshold=sampling.xtc_threshold,
            log_min_p=log(sampling.min_p) if sampling.min_p else -inf,
        )
    )
