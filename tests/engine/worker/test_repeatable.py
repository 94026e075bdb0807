"""A greedy reply that may differ from run to run is said to; one that repeats is not."""

import torch

from specchat.engine import Sampling
from tests.engine.tiny import ask, notices_of, tiny_engine, tiny_model


def told(dtype: torch.dtype, **options: object) -> list[str]:
    target = tiny_model()
    target.model.to(dtype)
    with tiny_engine(target) as engine:
        for number in range(2):
            list(engine.stream(ask("abcabc", f"{number}", max_tokens=4, **options)))
        return notices_of(engine.drain())


def test_an_adaptive_gamma_in_bfloat16_is_told_of_once() -> None:
    (text,) = told(torch.bfloat16)
    assert text.startswith("in bfloat16 a greedy reply may differ from run to run")


def test_what_repeats_is_not() -> None:
    assert told(torch.float32) == []
    assert told(torch.bfloat16, gamma=4) == []
    assert told(torch.bfloat16, sampling=Sampling(temperature=1.0)) == []
