"""The cost table, fed with timings whose truth is known."""

from __future__ import annotations

import random

import pytest

from specchat.engine.decoding.gamma.latency_model import LatencyModel

MEDIAN = 1.01
"""Of `jitter`, roughly."""


def jitter(chance: random.Random) -> float:
    """±30%, and one in twenty held up threefold."""
    return chance.uniform(0.7, 1.3) * (3 if chance.random() < 0.05 else 1)


def cpu(width: int) -> float:
    return 0.035 + 0.001 * width


def feed(latency: LatencyModel, scale: float, passes: int, chance: random.Random, rows: int = 1) -> None:
    for _ in range(passes):
        width = chance.choice([1, 2, 5, 9, 17])
        steps = width - 1
        latency.observe(
            rows,
            width,
            "draft",
            steps,
            steps * scale * 0.002 * jitter(chance),
            scale * cpu(width) * jitter(chance),
        )
        latency.observe_rest(rows, steps > 0, 0.001 * jitter(chance))


def test_before_any_measurement_only_ratios_mean_something() -> None:
    latency = LatencyModel()
    assert latency.verify(1, 1) <= latency.verify(1, 5) < 1.5 * latency.verify(1, 1)
    assert 0 < latency.draft_step("draft", 1) < latency.verify(1, 1)
    assert latency.rest(1) == 0


@pytest.mark.parametrize("seed", range(5))
def test_noise_averages_out(seed: int) -> None:
    latency = LatencyModel()
    feed(latency, 1.0, 300, random.Random(seed))
    for width in (2, 5, 8, 16):
        truth = cpu(width) / cpu(1)
        assert latency.verify(1, width) / latency.verify(1, 1) == pytest.approx(truth, rel=0.1)
    assert latency.verify(1, 1) == pytest.approx(cpu(1) * MEDIAN, rel=0.15)
    assert latency.draft_step("draft", 1) == pytest.approx(0.002 * MEDIAN, rel=0.25)
    assert latency.rest(1) == pytest.approx(0.001 * MEDIAN, rel=0.25)


def test_a_pass_never_gets_cheaper_with_more_tokens() -> None:
    latency = LatencyModel()
    for _ in range(50):
        latency.observe(1, 1, None, 0, 0.0, 0.010)
        latency.observe(1, 9, None, 0, 0.0, 0.008)
    times = latency.verify_up_to(1, 17)
    assert times == sorted(times)
    assert times[-1] == latency.verify(1, 17)


def test_a_held_up_first_pass_is_forgotten() -> None:
    """The first pass of a process may take a hundred times as long as any later one."""
    latency = LatencyModel()
    latency.observe(1, 1, None, 0, 0.0, 4.0)
    for _ in range(5):
        latency.observe(1, 1, None, 0, 0.0, 0.036)
    assert latency.verify(1, 1) == pytest.approx(0.036, rel=0.15)


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_the_machine_may_change_its_speed(scale: float) -> None:
    latency, chance = LatencyModel(), random.Random(1)
    feed(latency, 1.0, 200, chance)
    feed(latency, scale, 100, chance)
    assert latency.verify(1, 1) == pytest.approx(scale * cpu(1), rel=0.2)
    assert latency.verify(1, 9) / latency.verify(1, 1) == pytest.approx(cpu(9) / cpu(1), rel=0.1)


def test_a_step_from_one_token_to_two_is_seen() -> None:
    latency, chance = LatencyModel(), random.Random(2)
    for _ in range(60):
        latency.observe(1, 1, None, 0, 0.0, 0.010 * jitter(chance))
        latency.observe(1, 2, None, 0, 0.0, 0.014 * jitter(chance))
    assert latency.verify(1, 2) / latency.verify(1, 1) == pytest.approx(1.4, rel=0.1)


def test_doubt_shrinks_with_measurements_of_both_kinds() -> None:
    latency, chance = LatencyModel(), random.Random(3)
    fresh = latency.doubt(1, 5)
    for _ in range(20):
        latency.observe(1, 5, None, 0, 0.0, cpu(5) * jitter(chance))
    one_kind = latency.doubt(1, 5)
    for _ in range(20):
        latency.observe(1, 1, None, 0, 0.0, cpu(1) * jitter(chance))
    assert latency.doubt(1, 5) < 0.6 * one_kind < fresh


def test_an_unseen_batch_size_is_like_the_nearest_one() -> None:
    latency, chance = LatencyModel(), random.Random(4)
    feed(latency, 1.0, 100, chance, rows=1)
    feed(latency, 3.0, 100, chance, rows=8)
    assert latency.verify(7, 5) == latency.verify(8, 5)
    assert latency.verify(2, 5) == latency.verify(1, 5)
    assert latency.draft_step("draft", 6) == latency.draft_step("draft", 8)


def test_drafting_that_nobody_can_be_charged_with_is_not_learnt() -> None:
    latency = LatencyModel()
    latency.observe(1, 1, None, 0, 5.0, 0.036)
    assert latency.draft_step("draft", 1) < 0.036
