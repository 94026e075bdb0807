"""The standardised distribution, against transformers' own logits processors, and drawing from it."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.request import Sampling
from engine.sampling import SamplingRows, draw, standardise
from tests.engine.chi_square import z_score

CPU = torch.device("cpu")
SETTINGS = [
    Sampling(temperature=0.7),
    Sampling(temperature=1.3, top_k=5),
    Sampling(temperature=1.0, top_p=0.8),
    Sampling(temperature=1.0, min_p=0.1),
    Sampling(temperature=0.9, top_k=40, top_p=0.9, min_p=0.02),
]


def by_transformers(logits: torch.Tensor, settings: Sampling) -> torch.Tensor:
    chain = LogitsProcessorList([TemperatureLogitsWarper(settings.temperature)])
    if settings.top_k:
        chain.append(TopKLogitsWarper(settings.top_k))
    if settings.top_p < 1:
        chain.append(TopPLogitsWarper(settings.top_p))
    if settings.min_p:
        chain.append(MinPLogitsWarper(settings.min_p))
    return chain(torch.zeros(logits.shape[0], 1, dtype=torch.long), logits.float()).softmax(-1)


@pytest.mark.parametrize("vocabulary", [50, 5000], ids=["small", "beyond the head"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_it_is_what_transformers_samples_from(settings: Sampling, vocabulary: int) -> None:
    torch.manual_seed(1)
    logits = torch.randn(3, 4, vocabulary) * 4
    ours = standardise(logits, SamplingRows.of([settings] * 3, CPU))
    theirs = by_transformers(logits.reshape(12, vocabulary), settings).reshape(3, 4, vocabulary)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_a_flat_distribution_has_a_nucleus_wider_than_the_head() -> None:
    torch.manual_seed(2)
    logits = torch.randn(1, 1, 5000) * 0.01
    settings = Sampling(temperature=1.0, top_p=0.9)
    ours = standardise(logits, SamplingRows.of([settings], CPU))
    torch.testing.assert_close(ours[0], by_transformers(logits[0], settings), rtol=1e-5, atol=1e-7)


def test_rows_keep_their_own_settings_in_one_batch() -> None:
    torch.manual_seed(3)
    logits = torch.randn(len(SETTINGS) + 1, 2, 300) * 3
    settings = [*SETTINGS, Sampling()]
    together = standardise(logits, SamplingRows.of(settings, CPU))
    for i, one in enumerate(settings):
        alone = standardise(logits[i : i + 1], SamplingRows.of([one], CPU))
        torch.testing.assert_close(together[i : i + 1], alone, rtol=0, atol=0)


def test_greedy_and_top_1_are_one_hot() -> None:
    logits = torch.tensor([[[0.0, 3.0, 3.0, 1.0]]])
    for settings in (Sampling(), Sampling(temperature=0.5, top_k=1)):
        assert standardise(logits, SamplingRows.of([settings], CPU)).tolist() == [[[0.0, 1.0, 0.0, 0.0]]]


def test_drawing_follows_the_weights() -> None:
    torch.manual_seed(4)
    weights = torch.rand(1000)
    weights[::3] = 0
    u = torch.rand(200_000, dtype=torch.float64)
    tokens = torch.cat([draw(weights.expand(part.numel(), -1), part) for part in u.split(5_000)])
    assert abs(z_score(tokens, weights / weights.sum())) < 4


@pytest.mark.parametrize("u", [0.0, 1 - 2.0**-53])
def test_the_ends_of_the_unit_interval_never_pick_a_token_of_weight_zero(u: float) -> None:
    weights = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]])
    assert draw(weights, torch.tensor([u], dtype=torch.float64)).item() == (1 if u == 0 else 3)
