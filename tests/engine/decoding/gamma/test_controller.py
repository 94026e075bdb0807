"""Adaptive γ on simulated text: a virtual clock, seeded chances, timings as noisy as those of a shared machine.

A reply is scored by the tokens that its draft lengths are worth on average over their true cost, not by its luck.
"""

import random
from collections.abc import Callable, Sequence
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
    tree_rounds,
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


@pytest.mark.daily(6)
@MACHINES
@pytest.mark.parametrize("rate", [0.0, 0.05])
def test_text_that_drafts_badly_costs_at_most_3_percent(verify: Pass, c: float, rate: float) -> None:
    ratios: list[float] = []
    for seed in range(3):
        machine = machine_of(verify, c, seed)
        ratios += [speed(chains(machine, always(rate), 1, LONG)) * machine.round_s(0, [0]) for _ in range(2)]
    assert mean(ratios) > 1 / 1.03


@pytest.mark.daily(8)
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


@pytest.mark.parametrize("replies_before", [0, 2])
def test_copied_text_is_recognised_within_a_few_rounds(replies_before: int) -> None:
    """Even where nothing was ever accepted before, and though both halves draft from the same bucket."""
    for buckets, c, few in [((3,), NGRAM, 5), ((), 0.05, 10)]:
        waits = []
        for seed in range(16):  # one trial may come late
            machine = machine_of(cpu, c, seed)
            chains(machine, always(0.02), replies_before, LONG, buckets)
            waits.append(rounds_to_recover(chains(machine, novel_then_copied(0.95), 1, LONG, buckets)))
        assert mean(waits) <= few, (buckets, c, waits)


BUCKET_RATES = {2: 0.1, 3: 0.4, 4: 0.8}


def mixed(chance: random.Random) -> Callable[[int], list[int]]:
    """Two rounds in five start with a run of bucket 4; all else is bucket 2."""

    def draft(asked: int) -> list[int]:
        run = int(chance.expovariate(1 / 6)) if chance.random() < 0.4 else 0
        return ([4] * run + [2] * asked)[:asked]

    return draft


@pytest.mark.parametrize("verify", [cpu, wide_kernels])
def test_knowing_the_buckets_beats_every_fixed_gamma(verify: Pass) -> None:
    machines = [machine_of(verify, NGRAM, seed) for seed in range(3)]

    def fixed(gamma: int) -> float:
        draft = mixed(random.Random(0))
        tokens = sum(chain_tokens([BUCKET_RATES[b] for b in draft(gamma)]) for _ in range(2000))
        return tokens / (2000 * machines[0].round_s(gamma, [gamma]))

    for machine in machines:
        chains(machine, lambda _place, bucket: BUCKET_RATES[bucket], 2, LONG, (2, 3, 4), mixed(machine.random))
    played = [each for machine in machines for each in machine.played]
    assert speed(played) > 1.05 * max(fixed(g) for g in range(MAX_GAMMA + 1))


def test_experience_passes_from_one_request_to_the_next() -> None:
    machine = machine_of(gpu, 0.05, 3)
    of = DrafterProfile(), RowProfile()
    before = machine.gamma.acceptance("drafter", *of).survival([0, 0])
    chains(machine, always(0.9), 3, LONG)
    after = machine.gamma.acceptance("drafter", *of).survival([0, 0])
    assert all(b > a for a, b in zip(before, after, strict=True))
    assert speed(chains(machine, always(0.9), 1, LONG)[:10]) > 0.9 * best_fixed(machine, 0.9)


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


def test_what_padding_leaves_free_is_verified_even_in_a_trial() -> None:
    latency = CostModel(lambda width: width if width == 1 else 5 + (width - 2) // 4 * 4)
    for _ in range(50):
        for width in (1, 5, 9, 13, 17):
            latency.observe_pass(1, width, PLAIN_S * (1 + 0.2 * (width - 1)))
    controller = GammaController(latency)
    row = certain(0.02, controller)
    trials = []
    for _ in range(400):
        kept = controller.trim([row], [[2] * 16], 1)[0]
        controller.observe([row], [VerifiedDraft([2] * kept, 0)])
        trials.append(kept)
    assert {0, 4} <= set(trials) <= {0, 4, 8, 12, 16}


def test_each_drafter_of_a_batch_gets_its_own_gamma() -> None:
    latency = measured(2, cpu)
    for name, c in (("cheap", 0.01), ("dear", 0.3)):
        latency.observe_pass(2, 5, cpu(5))
        latency.observe_draft(name, 2, 4, 4 * c * PLAIN_S)
    controller = GammaController(latency)
    rows = [controller.acceptance(name, DrafterProfile(), RowProfile()) for name in ("cheap", "dear")]
    for row in rows:
        for _ in range(40):
            row.observe(VerifiedDraft([0] * 4, 3))
    cheap, dear = controller.choose(rows, [MAX_GAMMA, MAX_GAMMA], 2)
    assert cheap > dear > 0


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


def test_a_tree_has_the_tokens_that_pay() -> None:
    """As many as the hardware verifies for nothing, fewer the more it costs, and none if they are always refused."""
    rates, sizes = (0.45, 0.11, 0.06, 0.03), []
    for verify, rows in ((gpu, 1), (cpu, 1), (cpu, 6)):
        played = tree_rounds(machine_of(verify, 0.05, 1, rows), rates, 300)[150:]
        sizes.append(mean(each.kept[0] for each in played))
    assert sizes[0] > sizes[1] > sizes[2]
    assert sizes[1] > 2
    machine = machine_of(cpu, 0.05, 1)
    refused = tree_rounds(machine, (0.0, 0.0, 0.0, 0.0), 400)[200:]
    assert mean(each.seconds for each in refused) / machine.round_s(0, [0]) - 1 < 0.03


def test_what_one_method_promises_in_vain_does_not_count_against_the_other() -> None:
    """The combined drafter's text matches are often wrong in sampled text, in which its head drafts well."""
    profile = DrafterProfile(range(4), {0: 0.5, 1: 0.5, 2: 0.9, 3: 0.9}, methods=(0, 2))
    model = GammaController(CostModel()).acceptance("combined", profile, RowProfile())
    for _ in range(30):
        model.observe(VerifiedDraft([2, 3], 0))
    assert model.rates[0] == pytest.approx(0.5, abs=0.05)
    assert model.rates[2] < 0.3
