"""Models with two sets of rotary factors: a row's logits do not depend on other rows."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import Phi3Config, Phi3ForCausalLM

from specchat.engine import EngineConfig, EngineError
from specchat.engine.backends.transformers_backend import TransformersBackend
from specchat.engine.worker.assembly import assemble_loaded
from tests.engine.scored import make_static
from tests.engine.tiny import tiny_model

ORIGINAL = 64


def phi3() -> Phi3ForCausalLM:
    """Short and long factors that differ a lot."""
    torch.manual_seed(0)
    config = Phi3Config(
        vocab_size=260, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, original_max_position_embeddings=ORIGINAL, pad_token_id=0,
        rope_parameters={
            "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.0, 1.0, 1.0],
            "long_factor": [1.0, 2.0, 6.0, 20.0], "original_max_position_embeddings": ORIGINAL,
        },
    )  # fmt: skip
    network = Phi3ForCausalLM(config).eval().requires_grad_(False)
    network.lm_head.weight.mul_(12)
    return network


def tokens(count: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 250, (1, count), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("static", [False, True], ids=["as it comes", "static passes"])
@pytest.mark.parametrize("context", [ORIGINAL, 200])
def test_a_row_gets_the_same_logits_alone_and_beside_a_long_one(context: int, static: bool) -> None:
    short, long = tokens(20, 1), tokens(context - 4, 2)
    uncached = {len(row[0]): phi3()(row).logits[0, -3:] for row in (short, long)}
    runner = TransformersBackend(phi3(), 3, context, 17)
    if static:
        make_static(runner)

    def last(rows: list[torch.Tensor], slots: list[int]) -> torch.Tensor:
        for row, slot in zip(rows, slots, strict=True):
            runner.prefill(row[:, :-3], [slot], [0])
        return runner.forward(torch.cat([row[:, -3:] for row in rows]), slots, [row.shape[1] - 3 for row in rows])

    alone = last([short], [2])[0]
    together = last([short, long], [0, 2])
    torch.testing.assert_close(together[0], alone, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(together[1], uncached[long.shape[1]], rtol=1e-3, atol=1e-3)
    if context == ORIGINAL:
        torch.testing.assert_close(alone, uncached[20], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("context", "told"), [(ORIGINAL, 0), (200, 1)])
def test_the_user_is_told_where_the_long_factors_serve_all(context: int, told: int) -> None:
    model = replace(tiny_model(), model=phi3(), name="phi", context=256)
    notices = assemble_loaded(EngineConfig("tiny", Path(), slots=1, context=context), model).notices
    assert len(notices) == told
    assert all("phi" in text and f"--context {ORIGINAL}" in text for text in notices)


def test_two_engines_do_not_share_weights_that_they_need_with_other_factors() -> None:
    network = phi3()
    first = TransformersBackend(network, 1, 200, 17)
    TransformersBackend(network, 1, 100, 17)
    with pytest.raises(EngineError, match="in use with a context on the other side of 64 tokens"):
        TransformersBackend(network, 1, ORIGINAL, 17)
    del first
    assert TransformersBackend(network, 1, ORIGINAL, 17).short_context is None
