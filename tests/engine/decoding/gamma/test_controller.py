"""Adaptive γ on simulated text: a virtual clock, seeded chances, timings as noisy as those of a shared machine.

A reply is scored by the tokens that its draft lengths are worth on average over their true cost, not by its luck.
"""

import random
from collections.abc import Sequence
from statistics import mean

import pytest

from specchat.engine.decoding.drafter import DrafterProfile, RowProfile
from specchat.engine.decoding.gamma.acceptance_model import AcceptanceModel, VerifiedDraft
from specchat.engine.decoding.gamma.controller import GammaController
from specchat.engine.decoding.gamma.cost_model import CostModel
from specchat.engine.decoding.tree import chain
from specchat.engine.request import MAX_GAMMA
from tests.engine.decoding.gamma.simulated import (
    LONG,
    PLAIN_S,
    REST_S,
    Machine,
    Pass,
    Played,
    Rate,
    always,
    chain_tokens,
    chains,
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
MACHINES = pytest.mark.parametrize(
    ("verify", "c"), [(cpu, NGRAM), (cpu, 0.05), (cpu, 0.3), (gpu, 0.05), (gpu, 0.3), (wide_kernels, 0.05)]
)


@pytest.mark.daily(4)
@MACHINES
@pytest.mark.parametrize("rate", [0.0, 0.05])
def test_text_that_drafts_badly_costs_at_most_3_percent(verify: Pass, c: float, rate: float) -> None:
    ratios: list[float] = []
    for seed in range(3):
        machine = machine_of(verify, c, seed)
        ratios += [speed(chains(machine, always(rate), 1, LONG)) * machine.round_s(0, [0]) for _ in range(2)]
    assert mean(ratios) > 1 / 1.03


@pytest.mark.daily(6)
@MACHINES
@pytest.mark.parametrize("rate", [0.3, 0.5, 0.7, 0.9])
def test_steady_text_runs_within_5_percent_of_the_best_fixed_gamma(verify: Pass, c: float, rate: float) -> None:
    ratios: list[float] = []
    for seed in range(8):  # one engine that starts badly must not decide
        machine = machine_of(verify, c, seed)
        ratios += [speed(chains(machine, always(rate), 1, LONG)) / best_fixed(machine, rate) for _ in range(3)]
    assert mean(ratios) > 0.95


def novel_then_copied(rate: float) -> Rate:
    """Text that no draft fits, and from the middle of the reply on a copy."""
    return lambda place, _bucket: 0.02 if place < LONG // 2 else rate


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


def certain(rate: float, controller: GammaController, rounds: int = 60) -> AcceptanceModel:
    """A row that has seen this rate."""
    acceptance = controller.acceptance(f"drafter {rate}", DrafterProfile((2, 4)), RowProfile())
    chance = random.Random(1)
    for _ in range(rounds):
        acceptance.observe(VerifiedDraft([4, 2], 2 if chance.random() < rate else 0))
    return acceptance


def measured(rows: int, verify: Pass) -> CostModel:
    latency = CostModel()
    for _ in range(50):
        for width in (1, 2, 5, 9, 17):
            latency.observe_pass(rows, width, verify(width))
            latency.observe_rest(rows, REST_S, drafted=width > 1)
    return latency


def test_a_draft_is_as_long_as_the_batch_gains_by_it() -> None:
    """One row that copies is worth less of the others' time the more others there are; they share what there is."""
    kept = []
    for others in (0, 3, 15):
        controller = GammaController(measured(1 + others, lambda width: cpu(4 * width)))
        rows = [certain(0.8, controller), *(certain(0.02, controller) for _ in range(others))]
        proposed = [[4] * MAX_GAMMA] * len(rows)
        trimmed = controller.trim(rows, proposed, len(rows))
        assert len(set(trimmed)) == 1, "what one row gets is free for the others"
        kept.append(trimmed[0])
    assert kept[0] > kept[1] > kept[2]


def test_rooms_and_short_proposals_are_kept_to() -> None:
    controller = GammaController(measured(3, gpu))
    rows = [certain(0.9, controller) for _ in range(3)]
    asked = controller.choose(rows, [0, 3, 100], 3)
    assert asked[:2] == [0, 3]
    assert 3 < asked[2] <= MAX_GAMMA
    assert controller.trim(rows, [[], [4], [4, 4, 4]], 3) == [0, 1, 3]


def test_a_draft_of_one_step_is_long_at_the_price_of_a_step() -> None:
    latency = measured(1, cpu)
    latency.observe_pass(1, 9, cpu(9))
    for gamma in (1, 4):
        latency.observe_draft("block", 1, gamma, gamma * 0.3 * PLAIN_S)
    controller, block = GammaController(latency), (list(range(8)), chain(8))
    choices = []
    for about in (
        RowProfile(lambda gamma: (block[0][:gamma], chain(gamma))),
        RowProfile(lambda _: block, one_step=True),
    ):
        row = controller.acceptance("block", DrafterProfile(range(8)), about)
        for _ in range(40):
            row.observe(VerifiedDraft([*range(8)], 6))
        choices.append(controller.choose([row], [MAX_GAMMA], 1)[0])
    assert 0 < choices[0] < 8
    assert choices[1] == MAX_GAMMA
    assert controller.trim([row], [block[0]], 1)[0] >= 6


def test_what_one_method_promises_in_vain_does_not_count_against_the_other() -> None:
    """The combined drafter's text matches are often wrong in sampled text, in which its head drafts well."""
    profile = DrafterProfile(range(4), {0: 0.5, 1: 0.5, 2: 0.9, 3: 0.9}, methods=(0, 2))
    model = GammaController(CostModel()).acceptance("combined", profile, RowProfile())
    for _ in range(30):
        model.observe(VerifiedDraft([2, 3], 0))
    assert model.rates[0] == pytest.approx(0.5, abs=0.05)
    assert model.rates[2] < 0.3
