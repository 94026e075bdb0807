"""Networks that compute with the cache's keys and values outside attention are found, and get those of their rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specchat.engine.cache.cache_probe import CacheProbe
from tests.engine.backends.test_architectures import tiny

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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "doge", "deepseek_v3"])
def test_rows_in_slots_that_are_no_neighbours_give_what_each_gives_alone(kind: str, tmp_path: Path) -> None:
    runner = tiny(kind, tmp_path)
    texts = torch.randint(3, 128, (3, 30), generator=torch.Generator().manual_seed(1))
    lengths, slots = (20, 9, 14), (3, 0, 2)
    for text, length, slot in zip(texts, lengths, slots, strict=True):
        runner.prefill(text[None, :length], [slot], [0])
    new = torch.stack([text[length : length + 5] for text, length in zip(texts, lengths, strict=True)])
    together = runner.forward(new, slots, lengths)
    alone = [runner.forward(new[i : i + 1], [slots[i]], [lengths[i]])[0] for i in range(3)]
    torch.testing.assert_close(together, torch.stack(alone), rtol=1e-4, atol=1e-5)
