"""Multi-head latent attention: chains and trees over a cache of compressed keys and values."""

import copy

import pytest
import torch

from specchat.engine.backends.transformers_backend import TransformersBackend
from tests.engine.hybrids import LATENT, hybrid
from tests.engine.tiny import VOCABULARY, assert_drafters_agree, tiny_engine


@pytest.mark.parametrize("kind", LATENT)
def test_the_cache_holds_compressed_vectors(kind: str) -> None:
    network = hybrid(kind).model
    reference, config = copy.deepcopy(network), network.config
    backend = TransformersBackend(network, 2, 96, 17)
    text = torch.randint(3, VOCABULARY - 4, (1, 60), generator=torch.Generator().manual_seed(1))
    for first, end in ((0, 31), (31, 50)):
        backend.prefill(text[:, first:end], [1], [first])
    found = backend.forward(text[:, 50:], [1], [50])
    with torch.inference_mode():
        expected = reference(input_ids=text, use_cache=False).logits[:, 50:]
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)
    of_a_token = config.kv_lora_rank + config.qk_rope_head_dim  # float32, whatever the number of heads
    assert backend.cache.column_bytes == 4 * config.num_hidden_layers * of_a_token


def test_greedy_replies_are_the_same_for_all_drafters_and_batches() -> None:
    kind = "deepseek_v3"
    with tiny_engine(hybrid(kind), hybrid(kind, seed=1), slots=4, chunk=8) as engine:
        replies = assert_drafters_agree(engine, ("suffix", "model-tree"))
    assert len({tuple(reply) for reply in replies}) > 1
