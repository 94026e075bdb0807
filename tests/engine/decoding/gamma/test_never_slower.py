"""Adaptive γ against plain rounds and every fixed γ: short replies, alone and in batches, on several machines."""

from collections.abc import Callable
from statistics import mean

import numpy as np
import pytest

from specchat.engine.decoding.tree import LONGEST
from specchat.engine.request import MAX_GAMMA
from tests.engine.decoding.gamma.simulated import (
    COLD,
    PLAIN_S,
    REST_S,
    SHORT,
    Machine,
    Pass,
    always,
    chain_tokens,
    chains,
    growing,
    head_step,
    machine_of,
    pass_s,
    speed,
)

SLOWING = 0.155
"""Rate of acceptance at which the best drafts make replies slower by 5 %."""


def slow_step(rows: int) -> float:
    """A step at c = 0.5."""
    return 0.5 * pass_s(rows, 0)


def plain(rows: int) -> float:
    """Tokens per second without drafts."""
    return rows / (pass_s(rows, 0) + REST_S)


def best_fixed(rows: int, rate: float, step_s: Callable[[int], float]) -> float:
    """Tokens per second of the best γ that never changes, over replies as short."""

    def speed_of(gamma: int) -> float:
        machine, tokens, seconds = Machine(rows, step_s, 0), 0.0, 0.0
        for _ in range(12):
            left = [SHORT] * rows
            while min(left) > 0:
                drafts = [[rate] * min(gamma, each - 1) for each in left]
                kept = [*map(len, drafts)]
                tokens += sum(map(chain_tokens, drafts))
                seconds += machine.round_s(max(kept), kept)
                left = [each - 1 - machine.accepted(draft) for each, draft in zip(left, drafts, strict=True)]
        return tokens / seconds

    return max(map(speed_of, range(MAX_GAMMA + 1)))


def speeds(rows: int, step_s: Callable[[int], float], play: Callable[[Machine], None], seeds: int = 5) -> list[float]:
    """Mean tokens per second over seeds: from the start, and once it is warm."""
    machines = [Machine(rows, step_s, seed) for seed in range(seeds)]
    for machine in machines:
        play(machine)
    return [mean(speed(machine.played[begun:]) for machine in machines) for begun in (0, COLD)]


ROWS = pytest.mark.parametrize("rows", [1, 4])
STEPS = pytest.mark.parametrize("step_s", [head_step, slow_step])


@ROWS
@STEPS
@pytest.mark.parametrize(
    "play",
    [
        pytest.param(lambda machine: chains(machine, always(0.05), 5), id="chains"),
        pytest.param(lambda machine: growing(machine, 0.0, 5), id="trees", marks=pytest.mark.slow),
        pytest.param(lambda machine: growing(machine, 0.6, 5), id="sure trees", marks=pytest.mark.slow),
    ],
)
def test_text_that_cannot_be_drafted_costs_3_percent_at_most(
    rows: int, step_s: Callable[[int], float], play: Callable[[Machine], None]
) -> None:
    assert min(speeds(rows, step_s, play)) > plain(rows) / 1.03


@pytest.mark.parametrize(
    "play",
    [
        pytest.param(lambda machine: chains(machine, always(SLOWING), 1, 64), id="chains"),
        pytest.param(lambda machine: growing(machine, 0.3, 1, 0.58, reply=64), id="a head that promises too much"),
    ],
)
def test_a_first_reply_that_drafts_slow_down_by_5_percent_loses_3_at_most(play: Callable[[Machine], None]) -> None:
    slowed = chain_tokens([SLOWING]) / (head_step(1) + pass_s(1, 1) + REST_S) / plain(1)
    assert slowed == pytest.approx(0.95, abs=0.003)
    machines = [Machine(1, head_step, seed) for seed in range(16)]
    for machine in machines:
        machine.costs.observe_draft("drafter", 1, 1, machine.noisy(head_step(1)))  # as the planner does of a head
        play(machine)
    assert mean(speed(machine.played) for machine in machines) > plain(1) / 1.03


@pytest.mark.slow
@ROWS
@STEPS
@pytest.mark.parametrize("rate", [0.3, 0.9])
def test_short_replies_are_near_the_best_fixed_gamma(rows: int, step_s: Callable[[int], float], rate: float) -> None:
    cold, warm = speeds(rows, step_s, lambda machine: chains(machine, always(rate), 8), seeds=12)
    assert cold > plain(rows) / 1.03
    alone = rows == 1 and step_s is head_step
    assert warm > (0.95 if alone else 0.91) * best_fixed(rows, rate, step_s)


def recorded(*milliseconds: float) -> Pass:
    """Pass times measured at `WIDTHS`, straight lines between them; scaled so that a plain pass takes `PLAIN_S`."""
    return lambda width: PLAIN_S * float(np.interp(width, WIDTHS, milliseconds)) / milliseconds[0]


WIDTHS = (1, 2, 5, 9, 13, 17)
FLAT = recorded(58, 58, 58, 58.5, 59, 59)
"""bfloat16 on a 2-core Xeon with AMX: a pass over 17 tokens costs what one over one costs."""
FROM_5 = recorded(28, 28, 28, 33, 46, 62)
"""Level up to 5 tokens, then bound by arithmetic."""
FROM_2 = recorded(5.2, 5.8, 7.4, 12.0, 17.5, 23)
"""4-bit weights and int8 activations on AVX-512 VNNI: every token costs."""
MACHINES = pytest.mark.parametrize("verify", [FLAT, FROM_5, FROM_2], ids=["flat", "from 5", "from 2"])
STEP = 0.05


@pytest.mark.daily(2)
@MACHINES
def test_growing_trees_are_no_slower_than_the_best_fixed_chain(verify: Pass) -> None:
    fixed = machine_of(verify, STEP, 0)
    best = max(chain_tokens([(0.93 + 0.25) / 2] * n) / fixed.round_s(n, [n]) for n in range(LONGEST + 1))
    machines = [machine_of(verify, STEP, seed) for seed in range(6)]
    for machine in machines:
        growing(machine, 0.5, 3, reply=400)
    assert mean(speed(machine.played[COLD:]) for machine in machines) > best


@pytest.mark.daily(2)
@MACHINES
def test_the_first_reply_of_a_start_gains_by_drafts(verify: Pass) -> None:
    """Costs are known from the warm-up, acceptance is what the head shows: nothing has to be found out first."""
    machines = [machine_of(verify, STEP, seed) for seed in range(6)]
    for machine in machines:
        machine.costs.observe_draft("drafter", 1, 1, machine.noisy(STEP * PLAIN_S))
        growing(machine, 0.5, 1)
    assert mean(speed(machine.played) for machine in machines) > 1.3 / machines[0].round_s(0, [0])
