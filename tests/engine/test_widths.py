"""Passes have few widths, and what pads them changes nothing."""

from __future__ import annotations

import pytest
import torch

from engine.cached_model import CachedModel
from engine.costs import Costs
from engine.widths import ON_A_GPU, on_a_gpu, on_the_cpu
from tests.engine.tiny import tiny_model


def test_widths_are_few_and_never_too_small() -> None:
    assert [on_the_cpu(n) for n in (1, 2, 5, 6, 9, 10, 13, 14, 17, 18, 32, 33, 256)] == (
        [1, 5, 5, 9, 9, 13, 13, 17, 17, 32, 32, 64, 256]
    )
    assert all(on_the_cpu(n) >= n for n in range(1, 600))
    assert {on_a_gpu(n) for n in range(1, 18)} == set(ON_A_GPU)


@torch.inference_mode()
@pytest.mark.parametrize("length", [1, 2, 6, 13, 17, 20, 33])
def test_logits_and_cache_are_those_of_the_tokens_alone(length: int) -> None:
    network, reference = tiny_model().model, tiny_model().model
    tokens = torch.randint(0, 250, (2, 40), generator=torch.Generator().manual_seed(1))
    model = CachedModel(network, slots=2, context=40 - 1, overhang=17)
    model.prefill(tokens[:, :3], range(2), [0, 0])
    logits = model.forward(tokens[:, 3 : 3 + length], range(2), [3, 3])
    expected = reference(tokens).logits[:, 3 : 3 + length]
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    # What padded is masked, and then overwritten: more tokens behind these are scored as if nothing had been there.
    more = model.forward(tokens[:, 3 + length : 5 + length], range(2), [3 + length] * 2)
    expected = reference(tokens).logits[:, 3 + length : 5 + length]
    torch.testing.assert_close(more, expected, rtol=1e-4, atol=1e-4)


def test_a_prompt_may_end_where_the_cache_ends() -> None:
    network, reference = tiny_model().model, tiny_model().model
    tokens = torch.randint(0, 250, (1, 60), generator=torch.Generator().manual_seed(1))
    model = CachedModel(network, slots=1, context=60, overhang=1)  # 62 columns, and a chunk of 40 would be padded to 64
    model.prefill(tokens[:, :20], [0], [0])
    model.prefill(tokens[:, 20:59], [0], [20])
    torch.testing.assert_close(
        model.forward(tokens[:, 59:], [0], [59]), reference(tokens).logits[:, 59:], rtol=1e-4, atol=1e-4
    )


def test_tokens_that_cost_nothing_are_known_to() -> None:
    costs = Costs(on_the_cpu)
    for _ in range(40):
        for width in (1, 2, 5, 9):
            costs.observe(1, width, None, 0, 0.0, 0.010 + 0.001 * (on_the_cpu(width) > 5), 0.0)
    passes = costs.verify_up_to(1, 9)
    assert passes[1] == passes[4] < passes[5] == passes[8]
