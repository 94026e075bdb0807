"""The cost model, fed with timings whose truth is known."""

import random

import pytest

from specchat.engine.decoding.gamma.cost_model import CostModel
from tests.engine.decoding.gamma.simulated import jitter


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
        costs.observe_pass(rows, width, verify_s)
        if steps:
            costs.observe_draft("draft", rows, steps, draft_s)
        costs.observe_rest(rows, 0.001 * jitter(chance), drafted=steps > 0)


def test_a_held_up_first_pass_is_forgotten() -> None:
    """The first pass of a process may take a hundred times as long as any later one."""
    costs = CostModel()
    costs.observe_pass(1, 1, 4.0)
    for _ in range(5):
        costs.observe_pass(1, 1, 0.036)
    assert costs.of_batch(1).plain_s == pytest.approx(0.036, rel=0.15)


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_the_machine_may_change_its_speed(scale: float) -> None:
    costs, chance = CostModel(), random.Random(1)
    feed(costs, 1.0, 200, chance)
    feed(costs, scale, 100, chance)
    assert costs.verify_up_to(1, 1)[0] == pytest.approx(scale * cpu(1), rel=0.2)
    assert ratio(costs, 9) == pytest.approx(cpu(9) / cpu(1), rel=0.1)
