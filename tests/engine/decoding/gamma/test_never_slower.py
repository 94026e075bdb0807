"""Adaptive γ against plain rounds and every fixed γ: short replies one after another, alone and in batches.

Costs are those recorded of a 2-core CPU with 4-bit weights (a plain pass takes 2.7 ms, and what a round takes beside it
counts), timings jitter as on a shared machine. Speeds are expected tokens over true costs.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from statistics import mean

import numpy as np
import pytest

from specchat.engine.decoding.gamma.acceptance_model import AcceptanceModel, VerifiedDraft
from specchat.engine.decoding.gamma.controller import GammaController
from specchat.engine.decoding.gamma.cost_model import CostModel
from specchat.engine.decoding.tree import LONGEST, chain
from specchat.engine.drafters.tree_growth import EXPECTED, Growth, Node, going_on
from specchat.engine.request import MAX_GAMMA
from specchat.engine.worker.plain_passes import TIMED_WIDTHS

_TOKENS = (1, 2, 3, 4, 5, 7, 9, 13, 17, 33, 65)
_MS = (2.7, 2.75, 3.1, 3.2, 3.45, 3.9, 4.5, 6.5, 8.6, 17, 34)
REST_S = 0.0003
REPLY = 48
SLOWING = 0.155
"""Rate of acceptance at which the best drafts make replies slower by 5 %."""
COLD = 60
"""Rounds after which the controller must have found out."""


def pass_s(rows: int, drafted: int) -> float:
    """A pass over rows at different places, by the tokens of all of them: attention reads each row's own cache."""
    return float(np.interp(rows + drafted, _TOKENS, _MS)) / 1000 + 0.00015 * (rows - 1)


def head_step(rows: int) -> float:
    """A step of a draft head."""
    return 0.0005 + 0.0001 * rows


def slow_step(rows: int) -> float:
    """A step at c = 0.5."""
    return 0.5 * pass_s(rows, 0)


@dataclass
class Spent:
    """Expected tokens of all rows, and true seconds."""

    tokens: float = 0.0
    seconds: float = 0.0


class Machine:
    """One engine, from its cold start."""

    def __init__(
        self, rows: int, step_s: Callable[[int], float], seed: int, pass_s: Callable[[int, int], float] = pass_s
    ) -> None:
        self.rows, self.step_s, self.random, self.pass_s = rows, step_s, random.Random(seed), pass_s
        self.costs = CostModel(ragged=True)
        self.gamma = GammaController(self.costs)
        for width in TIMED_WIDTHS:
            for _ in range(2):
                self.costs.observe_pass(1, width, self.noisy(self.pass_s(1, width - 1)))
        self.round = 0
        self.all, self.warm = Spent(), Spent()

    def noisy(self, seconds: float) -> float:
        """±20%, and one in twenty held up."""
        return seconds * self.random.uniform(0.8, 1.2) * (3 if self.random.random() < 0.05 else 1)

    def accepted(self, rate: float, count: int) -> int:
        """How many of so many tokens are, from the first on."""
        right = 0
        while right < count and self.random.random() < rate:
            right += 1
        return right

    def count(self, steps: int, lengths: Sequence[int], tokens: float) -> None:
        """A round has been run."""
        drafted, rows = sum(lengths), self.rows
        draft_s, verify_s = steps * self.step_s(rows), self.pass_s(rows, drafted)
        self.costs.observe(rows, rows + drafted, "drafter", steps, self.noisy(draft_s), self.noisy(verify_s))
        self.costs.observe_rest(rows, self.noisy(REST_S), drafted=drafted > 0)
        self.round += 1
        for spent in (self.all, self.warm) if self.round > COLD else (self.all,):
            spent.tokens += tokens
            spent.seconds += draft_s + verify_s + REST_S

    def learn(self, models: Sequence[AcceptanceModel], judged: Sequence[VerifiedDraft], steps: int) -> None:
        """As the planner does."""
        drafted = steps > 0 or any(each.buckets for each in judged)
        self.gamma.observe(models, [replace(each, steps=steps) for each in judged] if drafted else (), self.rows)


def chains(machine: Machine, rate: float, replies: int, buckets: Sequence[int] = (), reply: int = REPLY) -> None:
    """Replies of a drafter of chains whose tokens are accepted at this rate."""
    for _ in range(replies):
        models = [machine.gamma.acceptance("drafter", buckets) for _ in range(machine.rows)]
        left = [reply] * machine.rows
        while min(left) > 0:
            rooms = [max(0, min(MAX_GAMMA, each - 1)) for each in left]
            asked = machine.gamma.choose(models, rooms, machine.rows)
            proposed = [
                [bucket] * gamma for gamma, bucket in zip(asked, [*buckets[:1], 0] * machine.rows, strict=False)
            ]
            kept = machine.gamma.trim(models, proposed, machine.rows)
            accepted = [machine.accepted(rate, count) for count in kept]
            judged = [
                VerifiedDraft(of[:count], right) for of, count, right in zip(proposed, kept, accepted, strict=True)
            ]
            machine.learn(models, judged, max(asked))
            machine.count(max(asked), kept, sum(chain_tokens(rate, count) for count in kept))
            left = [each - 1 - right for each, right in zip(left, accepted, strict=True)]


def chain_tokens(rate: float, length: int) -> float:
    """Expected tokens of a round (Leviathan et al. 2023, equation 1)."""
    return 1 + sum(accumulate([rate] * length, mul))


def growing(machine: Machine, sure: float, replies: int, truth: float = 1.0, reply: int = REPLY) -> None:
    """Replies of a drafter whose trees grow: it is sure of this share of its tokens, of the others not.

    A token is accepted by `truth` times the chance that it seems to have.
    """
    for _ in range(replies):
        models = [
            machine.gamma.acceptance("drafter", tuple(EXPECTED), EXPECTED, growing=True) for _ in range(machine.rows)
        ]
        left = [reply] * machine.rows
        while min(left) > 0:
            asked = machine.gamma.choose(models, [MAX_GAMMA] * machine.rows, machine.rows)
            drafts, steps, tokens = _grown(machine, models, asked, sure, truth)
            buckets, trees = [each.buckets for each in drafts], [each.tree for each in drafts]
            kept = machine.gamma.trim(models, buckets, machine.rows, trees)
            machine.learn(models, drafts, steps)
            machine.count(steps, kept, tokens)
            left = [each - 1 - draft.accepted for each, draft in zip(left, drafts, strict=True)]


def _grown(
    machine: Machine, models: Sequence[AcceptanceModel], asked: Sequence[int], sure: float, truth: float
) -> tuple[list[VerifiedDraft], int, float]:
    """The drafts of a round with what is accepted of them, draft steps, and the tokens to be expected."""
    mine = [i for i, gamma in enumerate(asked) if gamma]
    drafts, steps = [VerifiedDraft([], 0, chain(0)) for _ in asked], 0
    budgets = [machine.gamma.budget(models[i], machine.rows, len(mine)) for i in mine]
    growths = [Growth(budget, LONGEST, drawn=False) for budget in budgets]
    nodes, own = [[Node(0, 1.0, 0)] for _ in mine], [{0: 1.0} for _ in mine]
    while any(nodes):
        steps += 1
        promises = []
        for growth, level, chances in zip(growths, nodes, own, strict=True):
            shares = [_shares(machine, sure) for _ in level]
            added = growth.offers([replace(node, source=k) for k, node in enumerate(level)], shares)
            for each in added:
                growth.add(each, 0)
                chances[len(growth.tokens)] = truth * chances[each.node.place] * shares[each.node.source][each.rank]
            promises.append(growth.promising(added))
        nodes = [[] for _ in mine]
        for k in going_on(growths, [gain for _, gain in promises]):
            nodes[k] = [Node(place, each.chance, 0) for place, each in promises[k][0]]
            for node in nodes[k]:
                growths[k].next_column(node.place)
    tokens = float(machine.rows)
    for i, growth, chances in zip(mine, growths, own, strict=True):
        drafts[i], expected = _judged(machine, growth, chances)
        tokens += expected
    return drafts, steps, tokens


def _judged(machine: Machine, growth: Growth, chances: dict[int, float]) -> tuple[VerifiedDraft, float]:
    """What is accepted of a tree, whose tokens are numbered to find them again, and what is on average."""
    growth.tokens = list(range(1, len(growth.tokens) + 1))
    places, buckets, tree = growth.tree()
    truth = {0: 1.0, **{place: chances[first] for place, first in enumerate(places, 1)}}
    end, path = 0, list[int]()
    while behind := tree.children[end]:
        rates = [truth[child] / truth[end] for child in behind]
        found = machine.random.choices([*behind, 0], [*rates, max(0.0, 1 - sum(rates))])[0]
        if not found:
            break
        path.append(end := found)
    return VerifiedDraft(buckets, len(path), tree, path), sum(truth.values()) - 1


def _shares(machine: Machine, sure: float) -> list[float]:
    return [0.93, 0.03, 0.02, 0.01] if machine.random.random() < sure else [0.25, 0.12, 0.08, 0.05]


def plain(rows: int) -> float:
    """Tokens per second without drafts."""
    return rows / (pass_s(rows, 0) + REST_S)


def best_fixed(rows: int, rate: float, step_s: Callable[[int], float]) -> float:
    """Tokens per second of the best γ that never changes, over replies as short."""

    def speed(gamma: int) -> float:
        machine, spent = Machine(rows, step_s, 0), Spent()
        for _ in range(12):
            left = [REPLY] * rows
            while min(left) > 0:
                kept = [max(0, min(gamma, each - 1)) for each in left]
                spent.tokens += sum(chain_tokens(rate, count) for count in kept)
                spent.seconds += max(kept) * step_s(rows) + pass_s(rows, sum(kept)) + REST_S
                left = [each - 1 - machine.accepted(rate, count) for each, count in zip(left, kept, strict=True)]
        return spent.tokens / spent.seconds

    return max(map(speed, range(MAX_GAMMA + 1)))


def speeds(rows: int, step_s: Callable[[int], float], play: Callable[[Machine], None], seeds: int = 5) -> list[float]:
    """Mean tokens per second over seeds: from the start, and once it is warm."""
    machines = [Machine(rows, step_s, seed) for seed in range(seeds)]
    for machine in machines:
        play(machine)
    return [
        mean(s.tokens / s.seconds for s in spent) for spent in zip(*((m.all, m.warm) for m in machines), strict=True)
    ]


ROWS = pytest.mark.parametrize("rows", [1, 4])
STEPS = pytest.mark.parametrize("step_s", [head_step, slow_step])


@ROWS
@STEPS
def test_text_that_cannot_be_drafted_costs_3_percent_at_most(rows: int, step_s: Callable[[int], float]) -> None:
    cold, warm = speeds(rows, step_s, lambda machine: chains(machine, 0.05, 5), seeds=6)
    assert cold > plain(rows) / 1.03
    assert warm > plain(rows) / 1.03


@pytest.mark.parametrize(
    "play",
    [
        pytest.param(lambda machine: chains(machine, SLOWING, 1, reply=64), id="chains"),
        pytest.param(lambda machine: growing(machine, 0.3, 1, 0.58, reply=64), id="a head that promises too much"),
    ],
)
def test_a_first_reply_that_drafts_would_slow_down_by_5_percent_loses_3_at_most(
    play: Callable[[Machine], None],
) -> None:
    slowed = chain_tokens(SLOWING, 1) / (head_step(1) + pass_s(1, 1) + REST_S) / plain(1)
    assert slowed == pytest.approx(0.95, abs=0.003)
    machines = [Machine(1, head_step, seed) for seed in range(16)]
    for machine in machines:
        machine.costs.observe_draft("drafter", 1, 1, machine.noisy(head_step(1)))  # as the planner does of a head
        play(machine)
    assert mean(machine.all.tokens / machine.all.seconds for machine in machines) > plain(1) / 1.03


@pytest.mark.slow
@ROWS
@STEPS
@pytest.mark.parametrize("rate", [0.3, 0.9])
def test_short_replies_come_close_to_the_best_fixed_gamma(
    rows: int, step_s: Callable[[int], float], rate: float
) -> None:
    cold, warm = speeds(rows, step_s, lambda machine: chains(machine, rate, 8), seeds=12)
    assert cold > plain(rows) / 1.03
    alone = rows == 1 and step_s is head_step
    assert warm > (0.95 if alone else 0.91) * best_fixed(rows, rate, step_s)


@pytest.mark.slow
@ROWS
@STEPS
@pytest.mark.parametrize("sure", [0.0, 0.6])
def test_trees_that_grow_cost_3_percent_at_most(rows: int, step_s: Callable[[int], float], sure: float) -> None:
    cold, warm = speeds(rows, step_s, lambda machine: growing(machine, sure, 5))
    assert cold > plain(rows) / 1.03
    assert warm > plain(rows) / 1.03


def test_the_row_that_copies_drafts_alone() -> None:
    """Where a pass costs what its tokens do, what one row gets is not free for the others."""
    machine = Machine(4, head_step, 0)
    models = [machine.gamma.acceptance(name, (2, 4)) for name in ("copies", *["other"] * 3)]
    for _ in range(60):
        models[0].observe(VerifiedDraft([4, 4], 2))
        for other in models[1:]:
            other.observe(VerifiedDraft([4], 0))
    kept = machine.gamma.trim(models, [[4] * 4] * 4, 4)
    assert kept == [4, 0, 0, 0]
