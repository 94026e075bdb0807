"""Passes have few widths, and what pads them changes nothing."""

import pytest
import torch

from specchat.engine.backends.transformers_backend import TransformersBackend
from tests.engine.tiny import tiny_model


@torch.inference_mode()
@pytest.mark.parametrize("length", [1, 2, 6, 13, 17, 20, 33])
def test_logits_and_cache_are_those_of_the_tokens_alone(length: int) -> None:
    network, reference = tiny_model().model, tiny_model().model
    tokens = torch.randint(0, 250, (2, 40), generator=torch.Generator().manual_seed(1))
    model = TransformersBackend(network, slots=2, context=40 - 1, overhang=17)
    model.prefill(tokens[:, :3], range(2), [0, 0])
    logits = model.forward(tokens[:, 3 : 3 + length], range(2), [3, 3])
    expected = reference(tokens).logits[:, 3 : 3 + length]
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    # Padding is masked, and then overwritten: tokens that follow are scored as if it had not been there.
    more = model.forward(tokens[:, 3 + length : 5 + length], range(2), [3 + length] * 2)
    expected = reference(tokens).logits[:, 3 + length : 5 + length]
    torch.testing.assert_close(more, expected, rtol=1e-4, atol=1e-4)


def test_a_prompt_may_end_where_the_cache_ends() -> None:
    network, reference = tiny_model().model, tiny_model().model
    tokens = torch.randint(0, 250, (1, 60), generator=torch.Generator().manual_seed(1))
    model = TransformersBackend(
        network, slots=1, context=60, overhang=1
    )  # 62 columns, and a chunk of 40 would be padded to 64
    model.prefill(tokens[:, :20], [0], [0])
    model.prefill(tokens[:, 20:59], [0], [20])
    torch.testing.assert_close(
        model.forward(tokens[:, 59:], [0], [59]), reference(tokens).logits[:, 59:], rtol=1e-4, atol=1e-4
    )
