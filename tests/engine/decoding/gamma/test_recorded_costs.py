"""Adaptive γ once it is warm, on the recorded pass times of three kinds of machine, against the best fixed set-up.

A set-up that never changes is a γ and, for a drafter that offers trees, the number of its tokens that are verified.
"""

from statistics import mean

import numpy as np
import pytest

from specchat.engine.decoding.tree import LONGEST
from tests.engine.decoding.gamma.simulated import (
    COLD,
    PLAIN_S,
    Pass,
    chain_tokens,
    growing,
    machine_of,
    speed,
)


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


@MACHINES
def test_growing_trees_are_no_slower_than_the_best_fixed_chain(verify: Pass) -> None:
    fixed = machine_of(verify, STEP, 0)
    best = max(chain_tokens([(0.93 + 0.25) / 2] * n) / fixed.round_s(n, [n]) for n in range(LONGEST + 1))
    machines = [machine_of(verify, STEP, seed) for seed in range(6)]
    for machine in machines:
        growing(machine, 0.5, 3, reply=400)
    assert mean(speed(machine.played[COLD:]) for machine in machines) > best


@MACHINES
def test_the_first_reply_of_a_start_gains_by_drafts(verify: Pass) -> None:
    """Costs are known from the warm-up, acceptance is what the head shows: nothing has to be found out first."""
    machines = [machine_of(verify, STEP, seed) for seed in range(6)]
    for machine in machines:
        machine.costs.observe_draft("drafter", 1, 1, machine.noisy(STEP * PLAIN_S))
        growing(machine, 0.5, 1)
    assert mean(speed(machine.played) for machine in machines) > 1.3 / machines[0].round_s(0, [0])
