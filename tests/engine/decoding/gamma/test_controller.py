"""Adaptive γ on simulated text: a virtual clock, seeded chances, timings as noisy as those of a shared machine.

A reply is scored by the tokens that its draft lengths are worth on average over their true cost, not by its luck.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from statistics import mean

import pytest

from specchat.engine.decoding.gamma.acceptance_model import AcceptanceModel, VerifiedDraft
from specchat.engine.decoding.gamma.controller import GammaController
from specchat.engine.decoding.gamma.cost_model import CostModel
from specchat.engine.decoding.tree import Tree, chain, tree_of
from specchat.engine.request import MAX_GAMMA

PLAIN_S = 0.036
REST_S = 0.0005
REPLY = 400

Pass = Callable[[int], float]
Rate = Callable[[int, int], float]
"""Chance of acceptance by the token's place in the reply and its bucket."""


def cpu(width: int) -> float:
    return PLAIN_S + 0.001 * (width - 1)


def gpu(width: int) -> float:
    return PLAIN_S * (1 + 0.0005 * (width - 1))


def wide_kernels(width: int) -> float:
    """A pass over more than one token runs on slower kernels, as with int8 weights on a CPU."""
    return PLAIN_S if width == 1 else 1.4 * PLAIN_S + 0.001 * (width - 2)


def always(rate: float) -> Rate:
    return lambda _place, _bucket: rate


def round_s(verify: Pass, c: float, asked: int, kept: int) -> float:
    return verify(kept + 1) + asked * c * PLAIN_S + REST_S


def tokens_of(rates: Sequence[float]) -> float:
    """Equation 1, for tokens with different rates."""
    emitted: float = 1 + sum(accumulate(rates, mul))
    return emitted


def best_fixed(verify: Pass, c: float, rate: float) -> float:
    """Tokens per second of the best γ that never changes."""
    return max(tokens_of([rate] * g) / round_s(verify, c, g, g) for g in range(MAX_GAMMA + 1))


@dataclass
class Played:
    """One simulated round."""

    place: int
    asked: int
    kept: int
    tokens: float
    """Expected."""
    seconds: float


@dataclass
class World:
    """One engine with one row, and a text to draft for."""

    verify: Pass
    c: float
    seed: int
    buckets: tuple[int, ...] = ()
    costs: CostModel = field(default_factory=CostModel)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.gamma = GammaController(self.costs)

    def noisy(self, seconds: float) -> float:
        """±30%, and one in twenty held up."""
        return seconds * self.random.uniform(0.7, 1.3) * (3 if self.random.random() < 0.05 else 1)

    def reply(self, rate: Rate, draft: Callable[[int, int], list[int]] | None = None) -> list[Played]:
        """One request. `draft` gives the buckets drafted at a place, given γ."""
        acceptance = self.gamma.acceptance("drafter", self.buckets)
        place, played = 0, []
        while place < REPLY:
            asked = self.gamma.choose([acceptance], [REPLY - place - 1], 1)[0]
            proposed = draft(place, asked) if draft else [0] * asked
            kept = self.gamma.trim([acceptance], [proposed], 1)[0]
            tested = proposed[:kept]
            rates = [rate(place + i, bucket) for i, bucket in enumerate(tested)]
            accepted = 0
            while accepted < kept and self.random.random() < rates[accepted]:
                accepted += 1
            self.gamma.observe([acceptance], [VerifiedDraft(tested, accepted, steps=asked)])
            verify_s = self.verify(kept + 1)
            self.costs.observe(
                rows=1,
                width=kept + 1,
                drafter="drafter",
                steps=asked,
                draft_s=self.noisy(asked * self.c * PLAIN_S),
                verify_s=self.noisy(verify_s),
            )
            self.costs.observe_rest(1, self.noisy(REST_S), drafted=kept > 0)
            seconds = round_s(self.verify, self.c, asked, kept)
            played.append(Played(place, asked, kept, tokens_of(rates), seconds))
            place += accepted + 1
        return played


def speed(played: Sequence[Played]) -> float:
    """Tokens per second."""
    return sum(p.tokens for p in played) / sum(p.seconds for p in played)


NGRAM = 0.0005
MACHINES = pytest.mark.parametrize(
    ("verify", "c"), [(cpu, NGRAM), (cpu, 0.05), (cpu, 0.3), (gpu, 0.05), (gpu, 0.3), (wide_kernels, 0.05)]
)


@MACHINES
@pytest.mark.parametrize("rate", [0.0, 0.05])
def test_text_that_drafts_badly_costs_at_most_3_percent(verify: Pass, c: float, rate: float) -> None:
    ratios: list[float] = []
    for seed in range(3):
        world = World(verify, c, seed)
        ratios += [speed(world.reply(always(rate))) * round_s(verify, c, 0, 0) for _ in range(2)]
    assert mean(ratios) > 1 / 1.03


@MACHINES
@pytest.mark.parametrize("rate", [0.3, 0.5, 0.7, 0.9])
def test_steady_text_runs_within_5_percent_of_the_best_fixed_gamma(verify: Pass, c: float, rate: float) -> None:
    ratios: list[float] = []
    for seed in range(8):  # one engine that starts badly must not decide
        world = World(verify, c, seed)
        ratios += [speed(world.reply(always(rate))) / best_fixed(verify, c, rate) for _ in range(3)]
    assert mean(ratios) > 0.95


def novel_then_copied(rate: float) -> Rate:
    """Text that no draft fits, and from the middle of the reply on a copy."""
    return lambda place, _bucket: 0.02 if place < REPLY // 2 else rate


def rounds_to_recover(played: Sequence[Played]) -> int:
    """Rounds of the copied half until a draft of four tokens is verified."""
    second = [p for p in played if p.place >= REPLY // 2]
    return next((i for i, p in enumerate(second) if p.kept >= 4), len(second))


@pytest.mark.parametrize("replies_before", [0, 2])
def test_copied_text_is_recognised_within_a_few_rounds(replies_before: int) -> None:
    """Even where nothing was ever accepted before, and though both halves draft from the same bucket."""
    for buckets, c, few in [((3,), NGRAM, 5), ((), 0.05, 10)]:
        waits = []
        for seed in range(16):  # one trial may come late
            world = World(cpu, c, seed, buckets)
            draft = (lambda _place, asked: [3] * asked) if buckets else None
            for _ in range(replies_before):
                world.reply(always(0.02), draft)
            waits.append(rounds_to_recover(world.reply(novel_then_copied(0.95), draft)))
        assert mean(waits) <= few, (buckets, c, waits)


BUCKET_RATES = {2: 0.1, 3: 0.4, 4: 0.8}


def mixed(chance: random.Random) -> Callable[[int, int], list[int]]:
    """Two rounds in five start with a run of bucket 4; all else is bucket 2."""

    def draft(_place: int, asked: int) -> list[int]:
        run = int(chance.expovariate(1 / 6)) if chance.random() < 0.4 else 0
        return ([4] * run + [2] * asked)[:asked]

    return draft


@pytest.mark.parametrize("verify", [cpu, wide_kernels])
def test_knowing_the_buckets_beats_every_fixed_gamma(verify: Pass) -> None:
    def fixed(gamma: int) -> float:
        draft, tokens, seconds = mixed(random.Random(0)), 0.0, 0.0
        for _ in range(2000):
            tokens += tokens_of([BUCKET_RATES[b] for b in draft(0, gamma)])
            seconds += round_s(verify, NGRAM, gamma, gamma)
        return tokens / seconds

    replies: list[Played] = []
    for seed in range(3):
        world = World(verify, NGRAM, seed, (2, 3, 4))
        for _ in range(2):
            replies += world.reply(lambda _place, bucket: BUCKET_RATES[bucket], mixed(world.random))
    assert speed(replies) > 1.05 * max(fixed(g) for g in range(MAX_GAMMA + 1))


def test_experience_passes_from_one_request_to_the_next() -> None:
    world = World(gpu, 0.05, 3)
    before = world.gamma.acceptance("drafter").survival([0, 0])
    for _ in range(3):
        world.reply(always(0.9))
    after = world.gamma.acceptance("drafter").survival([0, 0])
    assert all(b > a for a, b in zip(before, after, strict=True))
    assert speed(world.reply(always(0.9))[:10]) > 0.9 * best_fixed(gpu, 0.05, 0.9)


def certain(rate: float, controller: GammaController, rounds: int = 60) -> AcceptanceModel:
    """A row that has seen this rate."""
    acceptance, chance = controller.acceptance(f"drafter {rate}", (2, 4)), random.Random(1)
    for _ in range(rounds):
        acceptance.observe(VerifiedDraft([4, 2], 2 if chance.random() < rate else 0))
    return acceptance


def measured(rows: int, verify: Pass) -> CostModel:
    latency = CostModel()
    for _ in range(50):
        for width in (1, 2, 5, 9, 17):
            latency.observe(rows, width, None, 0, 0.0, verify(width))
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
            latency.observe(1, width, None, 0, 0.0, PLAIN_S * (1 + 0.2 * (width - 1)))
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
        latency.observe(2, 5, name, 4, 4 * c * PLAIN_S, cpu(5))
    controller = GammaController(latency)
    rows = [controller.acceptance(name) for name in ("cheap", "dear")]
    for row in rows:
        for _ in range(40):
            row.observe(VerifiedDraft([0] * 4, 3))
    cheap, dear = controller.choose(rows, [MAX_GAMMA, MAX_GAMMA], 2)
    assert cheap > dear > 0


def offers(gamma: int) -> tuple[list[int], Tree]:
    """A tree, and for each token its rank, apart for the first position."""
    tree = tree_of(gamma)
    ranks = [tree.children[parent].index(child) for child, parent in enumerate(tree.parents, 1)]
    return [rank + 4 * (tree.depths[i] > 1) for i, rank in enumerate(ranks, 1)], tree


def tree_rounds(world: World, rates: Sequence[float], rounds: int, rows: int = 1) -> list[tuple[int, int]]:
    """γ and verified tokens of each round of a drafter that offers trees; the rank kept is drawn with these rates."""
    expected = {bucket: 0.06 for bucket in range(8) if bucket % 4}
    acceptance = world.gamma.acceptance("tree", range(8), expected, offers)
    played = []
    for _ in range(rounds):
        asked = world.gamma.choose([acceptance] * rows, [MAX_GAMMA] * rows, rows)[0]
        buckets, tree = offers(asked) if asked else ([], chain(0))
        kept = world.gamma.trim([acceptance] * rows, [buckets] * rows, rows, [tree] * rows)[0]
        tree, end = tree.first(kept), 0
        while tree.children[end]:
            behind, rank = tree.children[end], world.random.choices(range(5), [*rates, 1 - sum(rates)])[0]
            if rank >= len(behind):
                break
            end = behind[rank]
        path = tree.path(end)
        world.gamma.observe([acceptance], [VerifiedDraft(buckets[:kept], len(path), tree, path, asked)], rows)
        verify_s = world.noisy(world.verify(rows * (kept + 1)))
        draft_s = world.noisy(asked * world.c * PLAIN_S)
        world.costs.observe(rows, kept + 1, "tree", asked, draft_s, verify_s)
        world.costs.observe_rest(rows, REST_S, drafted=kept > 0)
        played.append((asked, kept))
    return played


def test_a_tree_has_the_tokens_that_pay() -> None:
    """As many as the hardware verifies for nothing, fewer the more it costs, and none if they are always refused."""
    rates = (0.45, 0.11, 0.06, 0.03)
    on_gpu = tree_rounds(World(gpu, 0.05, seed=1), rates, 300)[150:]
    on_cpu = tree_rounds(World(cpu, 0.05, seed=1), rates, 300)[150:]
    in_batch = tree_rounds(World(cpu, 0.05, seed=1), rates, 300, rows=6)[150:]
    sizes = [mean(kept for _, kept in played) for played in (on_gpu, on_cpu, in_batch)]
    assert sizes[0] > sizes[1] > sizes[2]
    assert sizes[1] > 2
    refused = tree_rounds(World(cpu, 0.05, seed=1), (0.0, 0.0, 0.0, 0.0), 400)[200:]
    lost = mean(round_s(cpu, 0.05, asked, kept) for asked, kept in refused) / round_s(cpu, 0.05, 0, 0) - 1
    assert lost < 0.03


def test_what_one_method_promises_in_vain_does_not_count_against_the_other() -> None:
    """The combined drafter's text matches are often wrong in sampled text, in which its head drafts well."""
    model = GammaController(CostModel()).acceptance(
        "combined", range(4), {0: 0.5, 1: 0.5, 2: 0.9, 3: 0.9}, methods=(0, 2)
    )
    for _ in range(30):
        model.observe(VerifiedDraft([2, 3], 0))
    assert model.rates[0] == pytest.approx(0.5, abs=0.05)
    assert model.rates[2] < 0.3
