"""Fingerprint of weights where they are stored."""

import tracemalloc

import numpy as np
import torch
from transformers import LlamaConfig

from specchat.engine.models.packed.fingerprint import source_fingerprint


class Stored:
    """Weights that are never all in memory."""

    def has(self, _: str) -> bool:
        return True

    def sample(self, _: str, places: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(places).float()


def test_it_takes_no_memory_for_what_is_not_sampled() -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1}
    tracemalloc.start()
    try:
        small, large = (source_fingerprint(Stored(), LlamaConfig(vocab_size=n, **sizes)) for n in (1000, 1_000_000))
        assert tracemalloc.get_traced_memory()[1] < 50e6, "the embedding alone has 64 million weights"
    finally:
        tracemalloc.stop()
    assert small != large
