"""The cost model, fed with timings whose truth is known."""

from __future__ import annotations

import random

import pytest

from specchat.engine.decoding.gamma.cost_model import CostModel

MEDIAN = 1.01
"""Of `jitter`, roughly."""


def jitter(chance: random.Random) -> float:
    """±30%, and one in twenty held up threefold."""
    return chance.uniform(0.7, 1.3) * (3 if chance.random() < 0.05 else 1)


def cpu(width: int) -> float:
    return 0.035 + 0.001 * width


def ratio(costs: CostModel, width: int) -> float:
    """Time of a pass over one row / time of a plain one."""
    seconds = costs.verify_up_to(1, width)
    return seconds[-1] / seconds[0]


def feed(costs: CostModel, scale: float, passes: int, chance: random.Random, rows: int = 1) -> None:
    for _ in range(passes):
        width = chance.choice([1, 2, 5, 9, 17])
        steps = width - 1
        draft_s, verify_s = steps * scale * 0.002 * jitter(chance), scale * cpu(width) * jitter(chance)
        costs.observe(rows, width, "draft", steps, draft_s, verify_s)
        costs.observe_part(steps > 0, rows, 0.001 * jitter(chance))


def test_before_any_measurement_drafts_seem_worth_a_try() -> None:
    costs = CostModel().of_batch(1)
    assert 0 <= costs.verifying(4) < 0.5
    assert 0 < costs.step("draft") < 0.5


@pytest.mark.parametrize("seed", range(5))
def test_noise_averages_out(seed: int) -> None:
    costs = CostModel()
    feed(costs, 1.0, 300, random.Random(seed))
    for width in (2, 5, 8, 16):
        assert ratio(costs, width) == pytest.approx(cpu(width) / cpu(1), rel=0.1)
    batch = costs.of_batch(1)
    assert batch.plain_s == pytest.approx((cpu(1) + 0.001) * MEDIAN, rel=0.15)
    assert batch.step("draft") * batch.plain_s == pytest.approx(0.002 * MEDIAN, rel=0.25)


def test_a_pass_never_gets_cheaper_with_more_tokens() -> None:
    costs = CostModel()
    for _ in range(50):
        costs.observe(1, 1, None, 0, 0.0, 0.010)
        costs.observe(1, 9, None, 0, 0.0, 0.008)
    times = costs.verify_up_to(1, 17)
    assert times == sorted(times)


def test_a_held_up_first_pass_is_forgotten() -> None:
    """The first pass of a process may take a hundred times as long as any later one."""
    costs = CostModel()
    costs.observe(1, 1, None, 0, 0.0, 4.0)
    for _ in range(5):
        costs.observe(1, 1, None, 0, 0.0, 0.036)
    assert costs.of_batch(1).plain_s == pytest.approx(0.036, rel=0.15)


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_the_machine_may_change_its_speed(scale: float) -> None:
    costs, chance = CostModel(), random.Random(1)
    feed(costs, 1.0, 200, chance)
    feed(costs, scale, 100, chance)
    assert costs.verify_up_to(1, 1)[0] == pytest.approx(scale * cpu(1), rel=0.2)
    assert ratio(costs, 9) == pytest.approx(cpu(9) / cpu(1), rel=0.1)


def test_a_step_from_one_token_to_two_is_seen() -> None:
    costs, chance = CostModel(), random.Random(2)
    for _ in range(60):
        costs.observe(1, 1, None, 0, 0.0, 0.010 * jitter(chance))
        costs.observe(1, 2, None, 0, 0.0, 0.014 * jitter(chance))
    assert ratio(costs, 2) == pytest.approx(1.4, rel=0.1)


def test_plain_passes_are_asked_for_the_less_often_the_more_there_were() -> None:
    """Also where every round drafts: else nobody would notice that plain rounds have become faster."""
    costs, plain = CostModel(), list[int]()
    for number in range(1000):
        lacks = costs.lacks_plain(1)
        plain += [number] * lacks
        costs.observe(1, 1 if lacks else 5, None, 0, 0.0, 0.036)
    assert 5 < len([number for number in plain if number < 300]) < 12
    assert len([number for number in plain if number >= 700]) < 4


def test_an_unseen_batch_size_is_like_the_nearest_one() -> None:
    costs, chance = CostModel(), random.Random(4)
    feed(costs, 1.0, 100, chance, rows=1)
    feed(costs, 3.0, 100, chance, rows=8)
    assert costs.verify_up_to(7, 5) == costs.verify_up_to(8, 5)
    assert costs.verify_up_to(2, 5) == costs.verify_up_to(1, 5)
    assert costs.of_batch(6).step("draft") == costs.of_batch(8).step("draft")


def test_drafting_that_nobody_can_be_charged_with_is_not_learnt() -> None:
    costs = CostModel()
    costs.observe(1, 1, None, 0, 5.0, 0.036)
    assert costs.of_batch(1).step("draft") < 1
