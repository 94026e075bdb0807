"""The standardised distribution, against transformers' own logits processors, and drawing from it."""

from contextlib import nullcontext
from dataclasses import replace
from math import inf, nan

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specchat.engine.sampling.sampler import SamplingRows, broken, draw, mass_threshold, most_likely, standardise
from specchat.engine.settings import Sampling
from tests.engine.pretend_cuda import GPU, pretended_gpu
from tests.engine.sampling.plainly import without_top_choices

CPU = torch.device("cpu")
SETTINGS = [
    Sampling(temperature=0.7), Sampling(temperature=1.3, top_k=5), Sampling(temperature=1.0, top_p=0.8),
    Sampling(temperature=1.0, min_p=0.1), Sampling(temperature=0.9, top_k=40, top_p=0.9, min_p=0.02),
]  # fmt: skip


def by_transformers(logits: torch.Tensor, settings: Sampling) -> torch.Tensor:
    chain = LogitsProcessorList([TemperatureLogitsWarper(settings.temperature)])
    if settings.top_k:
        chain.append(TopKLogitsWarper(settings.top_k))
    if settings.top_p < 1:
        chain.append(TopPLogitsWarper(settings.top_p))
    if settings.min_p:
        chain.append(MinPLogitsWarper(settings.min_p))
    return chain(torch.zeros(logits.shape[0], 1, dtype=torch.long), logits.float()).softmax(-1)


@pytest.mark.daily(31)
@pytest.mark.parametrize("spread", [4.0, 1.0, 0.01], ids=["peaked", "wide", "flat"])
@pytest.mark.parametrize("vocabulary", [50, 5000, 16_411], ids=["small", "beyond the head", "large and odd"])
@pytest.mark.parametrize("settings", [*SETTINGS, Sampling(temperature=1.0, top_k=3000, top_p=0.99)], ids=str)
@pytest.mark.parametrize("device", [CPU, GPU], ids=str)
def test_it_is_what_transformers_samples_from(
    settings: Sampling, vocabulary: int, spread: float, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spreads give nuclei of a few tokens, of hundreds, and of most of the vocabulary."""
    torch.manual_seed(1)
    logits = torch.randn(3, 2, vocabulary) * spread
    with pretended_gpu(monkeypatch) if device.type == "cuda" else nullcontext():
        ours = standardise(logits.to(device), SamplingRows.of([settings] * 3, device)).cpu()
    theirs = by_transformers(logits.reshape(6, vocabulary), settings).reshape(3, 2, vocabulary)
    kept, theirs_kept = ours > 0, theirs > 0
    # Theirs sums a whole vocabulary in float32, which puts the edge of a wide nucleus a token or two off.
    assert (kept != theirs_kept).sum(-1).max() <= (2 if vocabulary > 5000 and settings.top_p < 1 else 0)
    both = kept & theirs_kept
    torch.testing.assert_close(ours[both], theirs[both], rtol=1e-3 if vocabulary > 5000 else 1e-5, atol=1e-7)


def test_a_threshold_divides_numbers_of_any_sign_and_size() -> None:
    values = torch.tensor([[0.0, -0.0, 1e-40, -1e-40, 3e38, -3e38, -inf, 2.5, 2.5, -7.0]])
    order = values[0].sort(descending=True).values
    for count in range(1, 11):
        found = mass_threshold(values, torch.ones(1, 1, dtype=torch.long), torch.tensor([[count]]))
        assert found.item() == order[count - 1].item()


@pytest.mark.parametrize(
    "settings", [Sampling(temperature=1.3), Sampling(temperature=0.8, top_k=5, top_p=0.9)], ids=str
)
def test_xtc_leaves_the_least_likely_of_the_top_choices(settings: Sampling) -> None:
    """Also where one token alone or none at all reaches the threshold, and where the draw leaves it off."""
    logits = torch.randn(6, 3, 40, generator=torch.Generator().manual_seed(4)) * torch.arange(1.0, 4.0)[:, None]
    rows, limits = SamplingRows.of([settings] * 6, CPU), torch.tensor([0.5, 0.1, 1.0])
    plain = standardise(logits, rows)
    ours = standardise(logits, replace(rows, xtc=limits.double().expand(6, -1)))
    assert torch.equal(ours[:, 2], plain[:, 2])
    for place, limit in ((0, 0.5), (1, 0.1)):
        for one, other in zip(ours[:, place], plain[:, place], strict=True):
            torch.testing.assert_close(one, without_top_choices(other, limit))
    assert (ours[:, 1] == 0).sum() > (plain[:, 1] == 0).sum()


def test_xtc_keeps_tokens_that_tie() -> None:
    p = torch.tensor([[[0.4, 0.2, 0.2, 0.1, 0.1]]]).log()
    rows = replace(SamplingRows.of([Sampling(temperature=1.0)], CPU), xtc=torch.tensor([[0.15]]))
    torch.testing.assert_close(standardise(p, rows)[0, 0], torch.tensor([0, 0.2, 0.2, 0.1, 0.1]) / 0.6)


@pytest.mark.parametrize("vocabulary", [300, 16_500])
def test_rows_keep_their_own_settings_in_one_batch(vocabulary: int) -> None:
    """Bit-identical in all batches, and for small and large nuclei."""
    torch.manual_seed(3)
    settings = [*SETTINGS, Sampling(), Sampling(temperature=1.0, top_k=3000, top_p=0.99)]
    for spread in (3.0, 1.0, 0.01):
        logits = torch.randn(len(settings), 2, vocabulary) * spread
        logits[2, 1] = torch.randn(vocabulary) * 0.01
        together = standardise(logits, SamplingRows.of(settings, CPU))
        for i, one in enumerate(settings):
            alone = standardise(logits[i : i + 1], SamplingRows.of([one], CPU))
            assert torch.equal(together[i : i + 1], alone), (spread, one)
            assert torch.equal(standardise(logits[i : i + 1, 1:], SamplingRows.of([one], CPU)), alone[:, 1:])


@pytest.mark.parametrize("vocabulary", [8, 16_500])
def test_tokens_that_tie_at_the_edge_are_kept_together(vocabulary: int) -> None:
    logits = torch.full((1, 1, vocabulary), -20.0)
    logits[..., 1] = 3.0
    logits[..., 2:6] = 2.0
    for settings in (
        Sampling(temperature=1.0, top_k=2),
        Sampling(temperature=1.0, top_p=0.45),
        Sampling(temperature=1.0, top_p=0.9),
        Sampling(temperature=1.0, min_p=0.3),
        Sampling(temperature=1.0, top_k=3, top_p=0.99, min_p=0.01),
    ):
        kept = standardise(logits, SamplingRows.of([settings], CPU))[0, 0] > 0
        assert kept.nonzero().squeeze(-1).tolist() == [1, 2, 3, 4, 5]
    level = torch.zeros(1, 1, vocabulary)
    for settings in (Sampling(temperature=1.0, top_k=2), Sampling(temperature=1.0, top_p=0.5)):
        assert torch.equal(standardise(level, SamplingRows.of([settings], CPU)), level.softmax(-1))


@pytest.mark.parametrize("bad", [nan, inf, "nothing"])
@pytest.mark.parametrize("vocabulary", [10, 16_500])
def test_a_row_of_broken_logits_is_known_and_breaks_no_other(vocabulary: int, bad: float | str) -> None:
    torch.manual_seed(5)
    settings = [*SETTINGS, Sampling()]
    rows = SamplingRows.of(settings, CPU)
    whole = torch.randn(len(settings), 2, vocabulary)
    ends = torch.ones(len(settings), dtype=torch.long)
    before = standardise(whole, rows)
    for row in range(len(settings)):
        logits = whole.clone()
        logits[row, 1] = -inf if bad == "nothing" else logits[row, 1]
        logits[row, 1, 7] = -inf if bad == "nothing" else bad  # type: ignore[assignment]
        assert broken(logits, ends).tolist() == [i == row for i in range(len(settings))]
        assert broken(logits.bfloat16(), ends).tolist() == broken(logits, ends).tolist()
        assert not broken(logits, ends - 1).any(), "only what is judged counts"
        after = standardise(logits, rows)
        sound = torch.ones(after.shape[:2], dtype=torch.bool)
        sound[row, 1] = False
        assert torch.equal(after[sound], before[sound])
        if not settings[row].greedy:
            assert after[row, 1].isnan().any()
        token = draw(after[row, 1:], torch.tensor([0.5], dtype=torch.float64))
        assert 0 <= token.item() < vocabulary


def test_forbidden_tokens_are_no_fault() -> None:
    logits = torch.tensor([[[0.0, -inf, 1.0, -inf]]])
    assert not broken(logits, torch.zeros(1, dtype=torch.long)).any()
    for settings in [*SETTINGS, Sampling()]:
        p = standardise(logits, SamplingRows.of([settings], CPU))
        assert p.sum().item() == pytest.approx(1)
        assert p[0, 0, 1] == p[0, 0, 3] == 0


@pytest.mark.parametrize(
    "settings",
    [
        Sampling(),
        Sampling(temperature=0.5, top_k=1),
        *(Sampling(temperature=cold, top_p=0.9) for cold in (1e-6, 1e-45, 5e-324)),
    ],
)
def test_greedy_top_1_and_the_coldest_are_one_hot(settings: Sampling) -> None:
    logits = torch.tensor([[[0.0, 3.5, 3.0, 1.0]]])
    assert standardise(logits, SamplingRows.of([settings], CPU)).tolist() == [[[0.0, 1.0, 0.0, 0.0]]]


def test_any_top_k_will_do() -> None:
    logits = torch.randn(1, 2, 30)
    rows = SamplingRows.of([Sampling(temperature=1.0, top_k=10**400)], CPU)
    torch.testing.assert_close(standardise(logits, rows), logits.softmax(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("vocabulary", [64, 1000, 4096])
def test_the_most_likely_token_is_the_first_of_the_best(vocabulary: int, dtype: torch.dtype) -> None:
    torch.manual_seed(6)
    logits = (torch.randn(3, 5, vocabulary) * 2).to(dtype)
    logits[1] = logits[1].round()  # many ties
    logits[2, 0] = 0
    logits[2, 1, vocabulary // 3 :] = nan
    best = most_likely(logits)
    for place in [(b, t) for b in range(3) for t in range(5)]:
        values = logits[place].tolist()
        wanted = vocabulary // 3 if place == (2, 1) else values.index(max(values))
        assert best[place].item() == wanted


@pytest.mark.parametrize("u", [0.0, 1 - 2.0**-53])
def test_the_ends_of_the_unit_interval_never_pick_a_token_of_weight_zero(u: float) -> None:
    weights = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]])
    assert draw(weights, torch.tensor([u], dtype=torch.float64)).item() == (1 if u == 0 else 3)


@pytest.mark.parametrize("vocabulary", [1, 5, 64, 100, 3000])
def test_drawing_inverts_the_cumulative_sum_whatever_is_beside_a_row(vocabulary: int) -> None:
    torch.manual_seed(7)
    weights = torch.rand(40, vocabulary) * (torch.rand(40, vocabulary) < 0.3)
    weights[:, vocabulary // 2] += 0.01
    u = torch.rand(40, dtype=torch.float64)
    tokens = draw(weights, u)
    for b in range(40):
        cumulative = weights[b].double().cumsum(0)
        assert tokens[b] == (cumulative <= u[b] * cumulative[-1]).sum()
        assert tokens[b] == draw(weights[b : b + 1], u[b : b + 1])[0]
