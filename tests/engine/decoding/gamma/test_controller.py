"""Adaptive γ on simulated text: a virtual clock, seeded chances, timings as noisy as those of a shared machine.

A reply is scored by the tokens that its draft lengths are worth on average over their true cost, not by its luck.
"""

import random
from collections.abc import Sequence
from statistics import mean

import pytest

from specchat.engine.decoding.drafter import DrafterProfile, RowProfile
from specchat.engine.decoding.gamma.acceptance_model import VerifiedDraft
from specchat.engine.decoding.gamma.controller import GammaController
from specchat.engine.decoding.gamma.cost_model import CostModel
from specchat.engine.request import MAX_GAMMA
from tests.engine.decoding.gamma.simulated import (
    LONG,
    PLAIN_S,
    Machine,
    Pass,
    Played,
    Rate,
    always,
    chain_tokens,
    chains,
    jitter,
    machine_of,
    speed,
)


def cpu(width: int) -> float:
    return PLAIN_S + 0.001 * (width - 1)


def gpu(width: int) -> float:
    return PLAIN_S * (1 + 0.0005 * (width - 1))


def wide_kernels(width: int) -> float:
    """A pass over more than one token runs on slower kernels, as with int8 weights on a CPU."""
    return PLAIN_S if width == 1 else 1.4 * PLAIN_S + 0.001 * (width - 2)


def best_fixed(machine: Machine, rate: float) -> float:
    """Tokens per second of the best γ that never changes."""
    return max(chain_tokens([rate] * g) / machine.round_s(g, [g]) for g in range(MAX_GAMMA + 1))


NGRAM = 0.0005


@pytest.mark.daily(4)
@pytest.mark.parametrize(
    ("verify", "c"), [(cpu, NGRAM), (cpu, 0.05), (cpu, 0.3), (gpu, 0.05), (gpu, 0.3), (wide_kernels, 0.05)]
)
@pytest.mark.parametrize("rate", [0.3, 0.5, 0.7, 0.9])
def test_steady_text_runs_within_5_percent_of_the_best_fixed_gamma(verify: Pass, c: float, rate: float) -> None:
    ratios: list[float] = []
    for seed in range(8):  # one engine that starts badly must not decide
        machine = machine_of(verify, c, seed)
        ratios += [speed(chains(machine, always(rate), 1, LONG)) / best_fixed(machine, rate) for _ in range(3)]
    assert mean(ratios) > 0.95


def novel_then_copied(rate: float) -> Rate:
    """Text that no draft fits, and from the middle of the reply on a copy."""
    return lambda place: 0.02 if place < LONG // 2 else rate


def rounds_to_recover(played: Sequence[Played]) -> int:
    """Rounds of the copied half until a draft of four tokens is verified."""
    second = [p for p in played if p.place >= LONG // 2]
    return next((i for i, p in enumerate(second) if p.kept[0] >= 4), len(second))


def test_copied_text_is_recognised_within_a_few_rounds() -> None:
    """Even where nothing was ever accepted before, and though both halves draft from the same bucket."""
    for buckets, c, few in [((3,), NGRAM, 5), ((), 0.05, 10)]:
        waits = []
        for seed in range(8):  # one trial may come late
            machine = machine_of(cpu, c, seed)
            chains(machine, always(0.02), 1, LONG, buckets)
            waits.append(rounds_to_recover(chains(machine, novel_then_copied(0.95), 1, LONG, buckets)))
        assert mean(waits) <= few, (buckets, c, waits)


def test_what_one_method_promises_in_vain_does_not_count_against_the_other() -> None:
    """The combined drafter's text matches are often wrong in sampled text, in which its head drafts well."""
    profile = DrafterProfile(range(4), {0: 0.5, 1: 0.5, 2: 0.9, 3: 0.9}, methods=(0, 2))
    model = GammaController(CostModel()).acceptance("combined", profile, RowProfile())
    for _ in range(30):
        model.observe(VerifiedDraft([2, 3], 0))
    assert model.rates[0] == pytest.approx(0.5, abs=0.05)
    assert model.rates[2] < 0.3


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
