"""Passes padded to fixed shapes give what passes of the exact shape give, and touch nobody else's cache."""

from __future__ import annotations

import pytest
import torch

from specchat.engine.backends.captured_passes import CapturedPasses
from specchat.engine.backends.transformers_backend import TransformersBackend
from specchat.engine.device.graphs import GraphPool
from tests.engine.tiny import tiny_model


def prepared(device: str = "cpu") -> TransformersBackend:
    """Five slots with 30 random tokens each."""
    model = tiny_model().model.to(device)
    made = TransformersBackend(model, slots=5, context=400, overhang=17)
    tokens = torch.randint(0, 250, (5, 30), generator=torch.Generator().manual_seed(1))
    made.prefill(tokens.to(device), range(5), [0] * 5)
    return made


CASES = {
    "one row": ([0], [30], 1),
    "a row that is not the first": ([3], [25], 4),
    "two scattered rows, ragged": ([1, 4], [30, 12], 5),
    "all rows": ([0, 1, 2, 3, 4], [30, 29, 28, 27, 30], 7),
    "the end of the context": ([2], [399], 17),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_logits_are_those_of_the_exact_shape(case: tuple[list[int], list[int], int], device: str) -> None:
    slots, starts, length = case
    tokens = torch.randint(0, 250, (len(slots), length), generator=torch.Generator().manual_seed(2)).to(device)
    exact, padded = prepared(device), prepared(device)
    exact.captured = None
    padded.captured = CapturedPasses(padded.cache, padded._step, GraphPool(padded.device, capture=device == "cuda"))
    for _ in range(2):
        expected = exact.forward(tokens, slots, starts)
        assert padded.captured is not None
        torch.testing.assert_close(padded.forward(tokens, slots, starts), expected, rtol=1e-4, atol=1e-4)
    for ours, theirs in zip(padded.cache.keys, exact.cache.keys, strict=True):
        for slot, start in zip(slots, starts, strict=True):
            torch.testing.assert_close(ours[slot, :, : start + length], theirs[slot, :, : start + length])
        for slot in set(range(5)) - set(slots):
            assert torch.equal(ours[slot, :, :-1], theirs[slot, :, :-1])


def test_a_bucket_is_made_once() -> None:
    model = prepared()
    steps = CapturedPasses(model.cache, model._step, GraphPool(model.device, capture=False))
    with torch.inference_mode():
        for start in (30, 31, 40):
            steps.forward(torch.zeros(1, 4, dtype=torch.long), [0], [start])
    assert steps.graphs.keys == [(1, 5, 256)]
