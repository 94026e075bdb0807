"""Adaptive γ from a cold start on the recorded pass times of three kinds of machine, against the best fixed set-up.

A set-up that never changes is a γ and, for a drafter that offers trees, the number of its tokens that are verified.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from operator import mul
from statistics import mean

import pytest

from specchat.engine.decoding.gamma.acceptance_model import VerifiedDraft
from specchat.engine.decoding.tree import LONGEST, Tree, chain, tree_of
from specchat.engine.drafters.tree_growth import EXPECTED, Growth, Node
from specchat.engine.request import MAX_GAMMA
from specchat.engine.worker.plain_passes import TIMED_WIDTHS
from tests.engine.decoding.gamma.test_controller import Pass, World, offers

COLD = 60
"""Rounds after which the controller must have found out."""
ROUNDS = 260
WIDTHS = (1, 2, 5, 9, 13, 17)


def recorded(*milliseconds: float) -> Pass:
    """Pass times measured at `WIDTHS`, straight lines between them; scaled so that a plain pass takes `PLAIN_S`."""

    def seconds(width: int) -> float:
        for (left, right), (low, high) in zip(pairwise(WIDTHS), pairwise(milliseconds), strict=True):
            if width <= right:
                return 0.036 * (low + (high - low) * (width - left) / (right - left)) / milliseconds[0]
        raise AssertionError(width)

    return seconds


FLAT = recorded(58, 58, 58, 58.5, 59, 59)
"""bfloat16 on a 2-core Xeon with AMX: a pass over 17 tokens costs what one over one costs."""
FROM_5 = recorded(28, 28, 28, 33, 46, 62)
"""Level up to 5 tokens, then bound by arithmetic."""
FROM_2 = recorded(5.2, 5.8, 7.4, 12.0, 17.5, 23)
"""4-bit weights and int8 activations on AVX-512 VNNI: every token costs."""
MACHINES = pytest.mark.parametrize("verify", [FLAT, FROM_5, FROM_2], ids=["flat", "from 5", "from 2"])

STEP = 0.05
REST = 0.0005


def chain_tokens(rate: float, length: int) -> float:
    """Expected tokens of a round (Leviathan et al. 2023, equation 1)."""
    return 1 + sum(accumulate([rate] * length, mul))


def tree_tokens(rates: Sequence[float], tree: Tree) -> float:
    """Expected tokens of a round: every token's chance is that of what it follows times that of its rank."""
    chances = [1.0]
    for child, parent in enumerate(tree.parents, 1):
        chances.append(chances[parent] * rates[tree.children[parent].index(child)])
    return sum(chances)


def speed_of(verify: Pass, asked: int, kept: int, tokens: float) -> float:
    return tokens / (verify(kept + 1) + asked * STEP * verify(1) + REST)


def chains(world: World, rate: float) -> list[float]:
    """(expected tokens, seconds) of each round of a drafter without grades of confidence, as one speed after `COLD`."""
    acceptance = world.gamma.acceptance("model")
    tokens = seconds = 0.0
    for number in range(ROUNDS):
        asked = world.gamma.choose([acceptance], [MAX_GAMMA], 1)[0]
        kept = world.gamma.trim([acceptance], [asked], [[0] * asked], 1)[0]
        accepted = 0
        while accepted < kept and world.random.random() < rate:
            accepted += 1
        world.gamma.observe([acceptance], [VerifiedDraft([0] * kept, accepted)])
        _time(world, "model", asked, kept)
        if number >= COLD:
            tokens += chain_tokens(rate, kept)
            seconds += chain_tokens(rate, kept) / speed_of(world.verify, asked, kept, chain_tokens(rate, kept))
    return [tokens / seconds]


def trees(world: World, rates: Sequence[float]) -> list[float]:
    """The same of a drafter that offers trees."""
    expected = {bucket: 0.06 for bucket in range(8) if bucket % 4}
    acceptance = world.gamma.acceptance("tree", range(8), expected, offers)
    tokens = seconds = 0.0
    for number in range(ROUNDS):
        asked = world.gamma.choose([acceptance], [MAX_GAMMA], 1)[0]
        buckets, tree = offers(asked) if asked else ([], chain(0))
        kept = world.gamma.trim([acceptance], [asked], [buckets], 1, [tree])[0]
        tree, end = tree.first(kept), 0
        while tree.children[end]:
            behind = tree.children[end]
            rank = world.random.choices(range(len(rates) + 1), [*rates, 1 - sum(rates)])[0]
            if rank >= len(behind):
                break
            end = behind[rank]
        path = tree.path(end)
        world.gamma.observe([acceptance], [VerifiedDraft(buckets[:kept], len(path), tree, path)])
        _time(world, "tree", asked, kept)
        if number >= COLD:
            worth = tree_tokens(rates, tree)
            tokens += worth
            seconds += worth / speed_of(world.verify, asked, kept, worth)
    return [tokens / seconds]


def growing(world: World, first: int = COLD, last: int = 2 * ROUNDS) -> list[float]:
    """Speed from round `first` on of a drafter whose trees grow by confidence: its shares are its tokens' chances."""
    acceptance = world.gamma.acceptance("head", tuple(EXPECTED), EXPECTED, growing=True)
    tokens = seconds = 0.0
    for number in range(last):
        asked = world.gamma.choose([acceptance], [MAX_GAMMA], 1)[0]
        steps, buckets, tree, accepted = 0, list[int](), chain(0), list[int]()
        if asked:
            growth = Growth(world.gamma.budget(acceptance, 1), LONGEST, drawn=False)
            nodes, own = [Node(0, 1.0, 0)], {0}
            while nodes:
                steps += 1
                shares = [_shares(world) for _ in nodes]
                added = growth.offers([replace(node, source=i) for i, node in enumerate(nodes)], shares)
                ranks = [world.random.choices(range(5), [*each, 1 - sum(each)])[0] for each in shares]
                for each in added:
                    right = each.node.place in own and each.rank == ranks[each.node.source]
                    growth.add(each, int(right))
                    own |= {len(growth.tokens)} if right else set()
                promises, gain = growth.promising(added)
                nodes = [Node(place, each.chance, 0) for place, each in promises if gain > growth.budget.step]
                for node in nodes:
                    growth.next_column(node.place)
            found, buckets, tree = growth.tree()
            accepted = [place for place, right in enumerate(found, 1) if right]
        kept = world.gamma.trim([acceptance], [steps], [buckets], 1, [tree])[0]
        assert kept == len(tree)
        world.gamma.observe([acceptance], [VerifiedDraft(buckets, len(accepted), tree, accepted)])
        _time(world, "head", steps, kept)
        if number >= first:
            tokens += 1 + len(accepted)
            seconds += world.verify(kept + 1) + steps * STEP * world.verify(1) + REST
    return [tokens / seconds]


def _shares(world: World) -> list[float]:
    """Sure of half of the tokens, of the others not."""
    return [0.93, 0.03, 0.02, 0.01] if world.random.random() < 0.5 else [0.25, 0.12, 0.08, 0.05]


def _time(world: World, drafter: str, asked: int, kept: int) -> None:
    draft_s = world.noisy(asked * STEP * world.verify(1))
    verify_s, rest_s = world.noisy(world.verify(kept + 1)), world.noisy(REST)
    world.costs.observe(1, kept + 1, drafter, asked, draft_s, verify_s)
    world.costs.observe_part(kept > 0, 1, rest_s)


def reached(play: Callable[[World], list[float]], verify: Pass, best: float) -> float:
    """Share of the best fixed set-up's speed, mean over seeds."""
    return mean(speed / best for seed in range(6) for speed in play(World(verify, STEP, seed)))


@MACHINES
@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_chains_reach_95_percent_of_the_best_fixed_gamma(verify: Pass, rate: float) -> None:
    best = max(speed_of(verify, n, n, chain_tokens(rate, n)) for n in range(MAX_GAMMA + 1))
    assert reached(lambda world: chains(world, rate), verify, best) > 0.95


@MACHINES
@pytest.mark.parametrize("rates", [(0.44, 0.10, 0.06, 0.03), (0.6, 0.12, 0.05, 0.03), (0.75, 0.1, 0.03, 0.02)])
def test_trees_reach_95_percent_of_the_best_fixed_tree(verify: Pass, rates: tuple[float, ...]) -> None:
    best = max(
        speed_of(verify, gamma, kept, tree_tokens(rates, tree_of(gamma).first(kept)))
        for gamma in range(1, LONGEST + 1)
        for kept in range(len(tree_of(gamma)) + 1)
    )
    best = max(best, speed_of(verify, 0, 0, 1.0))
    assert reached(lambda world: trees(world, rates), verify, best) > 0.95


@MACHINES
def test_growing_trees_are_no_slower_than_the_best_fixed_chain(verify: Pass) -> None:
    best = max(speed_of(verify, n, n, chain_tokens((0.93 + 0.25) / 2, n)) for n in range(LONGEST + 1))
    assert reached(growing, verify, best) > 1.0


@MACHINES
def test_the_first_reply_of_a_start_gains_by_drafts(verify: Pass) -> None:
    """Costs are known from the warm-up, acceptance is what the head shows: nothing has to be found out first."""

    def first_reply(world: World) -> list[float]:
        for width in TIMED_WIDTHS:
            for _ in range(2):
                world.costs.observe_pass(1, width, world.noisy(verify(width)))
        world.costs.observe_part("head", 1, world.noisy(STEP * verify(1)))
        return growing(world, 0, 20)

    assert reached(first_reply, verify, speed_of(verify, 0, 0, 1.0)) > 1.3
