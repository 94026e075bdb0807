"""The probe knows networks that compute with the cache's keys and values outside attention."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from specchat.engine.cache.cache_probe import CacheProbe

LOOKS: dict[str, tuple[Callable[[Tensor], Any], bool]] = {
    "shape": (lambda keys: (keys.shape, keys.dtype, keys.device, keys.size(-1), keys.dim()), False),
    "sum": (lambda keys: keys + 1, True),
    "method": (lambda keys: keys.transpose(1, 2), True),
    "index": (lambda keys: keys[:, :, :1], True),
    "in a list": (lambda keys: torch.cat([torch.zeros_like(keys.plain), keys], 2), True),  # type: ignore[attr-defined]
    "number": (lambda keys: keys.max().item(), True),
}


@pytest.mark.parametrize(("look", "counts"), LOOKS.values(), ids=LOOKS.keys())
@torch.inference_mode()
def test_who_computes_with_what_a_cache_hands_out_is_seen(look: Callable[[Tensor], Any], counts: bool) -> None:
    keys, values = CacheProbe().update(torch.ones(1, 2, 1, 4), torch.ones(1, 2, 1, 4), 0)
    expected = look(keys.plain) if look is not LOOKS["in a list"][0] else None  # type: ignore[attr-defined]
    found = look(keys)
    if isinstance(expected, Tensor):
        assert type(found) is Tensor
        assert torch.equal(found, expected)
    assert keys.looked_at is counts  # type: ignore[attr-defined]
    assert values.looked_at is False  # type: ignore[attr-defined]
