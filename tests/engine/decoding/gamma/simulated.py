"""An engine whose drafts and timings are simulated: their truth is known, chances and noise are drawn from a seed.

Costs are those recorded of a 2-core CPU with 4-bit weights (a plain pass takes 2.7 ms, and the rest of a round
counts too), or given. Speeds are expected tokens over true costs: what draft lengths are worth, not their luck.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul

import numpy as np

from specchat.engine.decoding.drafter import DrafterProfile, RowProfile
from specchat.engine.decoding.gamma.acceptance_model import AcceptanceModel, VerifiedDraft
from specchat.engine.decoding.gamma.controller import GammaController
from specchat.engine.decoding.gamma.cost_model import CostModel
from specchat.engine.decoding.tree import LONGEST, chain
from specchat.engine.decoding.tree_growth import EXPECTED, Growth, Node, choose_expanded
from specchat.engine.request import MAX_GAMMA
from specchat.engine.worker.rounds import TIMED_WIDTHS

_TOKENS = (1, 2, 3, 4, 5, 7, 9, 13, 17, 33, 65)
_MS = (2.7, 2.75, 3.1, 3.2, 3.45, 3.9, 4.5, 6.5, 8.6, 17, 34)
REST_S = 0.0003
PLAIN_S = 0.036
"""A plain pass of a machine whose costs are given."""
SHORT, LONG = 48, 400
"""Tokens of replies."""
COLD = 60
"""Rounds after which the controller must have found out."""

Pass = Callable[[int], float]
"""Seconds of a pass by its tokens."""
Rate = Callable[[int], float]
"""Chance of acceptance by the token's place in the reply."""


def pass_s(rows: int, drafted: int) -> float:
    """A pass over rows at different places, by the tokens of all of them: attention reads each row's own cache."""
    return float(np.interp(rows + drafted, _TOKENS, _MS)) / 1000 + 0.00015 * (rows - 1)


def head_step(rows: int) -> float:
    """A step of a draft head."""
    return 0.0005 + 0.0001 * rows


def always(rate: float) -> Rate:
    return lambda _place: rate


def chain_tokens(rates: Sequence[float]) -> float:
    """Expected tokens of a round (Leviathan et al. 2023, equation 1), for tokens with different rates."""
    return 1 + sum(accumulate(rates, mul))


def jitter(chance: random.Random, spread: float = 0.3) -> float:
    """As timings jitter on a shared machine: ±30%, and one in twenty held up threefold."""
    return chance.uniform(1 - spread, 1 + spread) * (3 if chance.random() < 0.05 else 1)


@dataclass
class Played:
    """One round."""

    place: int
    """Of the first row in its reply."""
    steps: int
    kept: Sequence[int]
    """Drafted tokens that each row has verified."""
    tokens: float
    """Expected, of all rows."""
    seconds: float
    """By the true costs."""


def speed(played: Sequence[Played]) -> float:
    """Tokens per second."""
    return sum(each.tokens for each in played) / sum(each.seconds for each in played)


class Machine:
    """One engine, from its cold start.

    Args:
        rows: of every batch.
        step_s: seconds of a draft step, by rows.
        seed: of chances and noise.
        pass_s: seconds of a pass, by rows and drafted tokens.
        ragged: whether passes cost what their tokens do, as on the kernels; they are then timed at the start, and
            timings jitter by 20 % only.
    """

    def __init__(
        self,
        rows: int,
        step_s: Callable[[int], float],
        seed: int,
        pass_s: Callable[[int, int], float] = pass_s,
        *,
        ragged: bool = True,
    ) -> None:
        self.rows, self.step_s, self.random, self.pass_s = rows, step_s, random.Random(seed), pass_s
        self.costs = CostModel(ragged=ragged)
        self.gamma = GammaController(self.costs)
        self.played: list[Played] = []
        for width in TIMED_WIDTHS if ragged else ():
            for _ in range(2):
                self.costs.observe_pass(1, width, self.noisy(self.pass_s(1, width - 1)))

    def noisy(self, seconds: float) -> float:
        return seconds * jitter(self.random, 0.2 if self.costs.ragged else 0.3)

    def round_s(self, steps: int, kept: Sequence[int]) -> float:
        """True seconds of a round."""
        return steps * self.step_s(self.rows) + self.pass_s(self.rows, sum(kept)) + REST_S

    def accepted(self, rates: Sequence[float]) -> int:
        """How many tokens of a chain are."""
        right = 0
        while right < len(rates) and self.random.random() < rates[right]:
            right += 1
        return right

    def play(
        self,
        models: Sequence[AcceptanceModel],
        judged: Sequence[VerifiedDraft],
        steps: int,
        kept: Sequence[int],
        tokens: float,
        place: int = 0,
    ) -> None:
        """Learn from a round as the planner does, and count it."""
        drafted = steps > 0 or any(each.buckets for each in judged)
        self.gamma.observe(models, [replace(each, steps=steps) for each in judged] if drafted else (), self.rows)
        width = self.rows + sum(kept) if self.costs.ragged else 1 + max(kept)
        draft_s, verify_s = steps * self.step_s(self.rows), self.pass_s(self.rows, sum(kept))
        draft_s, verify_s = self.noisy(draft_s), self.noisy(verify_s)
        self.costs.observe_pass(self.rows, width, verify_s)
        if steps:
            self.costs.observe_draft("drafter", self.rows, steps, draft_s)
        self.costs.observe_rest(self.rows, self.noisy(REST_S), drafted=sum(kept) > 0)
        self.played.append(Played(place, steps, kept, tokens, self.round_s(steps, kept)))


def machine_of(verify: Pass, c: float, seed: int, rows: int = 1) -> Machine:
    """One with given times of passes, and of a draft step against `PLAIN_S`."""
    return Machine(rows, lambda _: c * PLAIN_S, seed, lambda rows, drafted: verify(rows + drafted), ragged=False)


def chains(
    machine: Machine,
    rate: Rate,
    replies: int = 1,
    reply: int = SHORT,
    buckets: Sequence[int] = (),
) -> list[Played]:
    """The rounds of replies of a drafter of chains, of the first bucket."""
    before = len(machine.played)
    for _ in range(replies):
        profile, about = DrafterProfile(buckets), RowProfile()
        models = [machine.gamma.acceptance("drafter", profile, about) for _ in range(machine.rows)]
        places = [0] * machine.rows
        while max(places) < reply:
            asked = machine.gamma.choose(models, [min(MAX_GAMMA, reply - place - 1) for place in places], machine.rows)
            proposed = [[*buckets[:1], 0][:1] * gamma for gamma in asked]
            kept = machine.gamma.trim(models, proposed, machine.rows)
            tested = [each[:count] for each, count in zip(proposed, kept, strict=True)]
            rates = [[rate(place + i) for i in range(len(each))] for place, each in zip(places, tested, strict=True)]
            accepted = [machine.accepted(each) for each in rates]
            judged = [VerifiedDraft(*each) for each in zip(tested, accepted, strict=True)]
            machine.play(models, judged, max(asked), kept, sum(map(chain_tokens, rates)), places[0])
            places = [place + 1 + right for place, right in zip(places, accepted, strict=True)]
    return machine.played[before:]


def growing(machine: Machine, sure: float, replies: int, truth: float = 1.0, reply: int = SHORT) -> None:
    """Replies of a drafter whose trees grow: it is sure of this share of its tokens, of the others not.

    A token is accepted by `truth` times the chance that it seems to have.
    """
    for _ in range(replies):
        profile, about = DrafterProfile(tuple(EXPECTED), EXPECTED), RowProfile(grows=True)
        models = [machine.gamma.acceptance("drafter", profile, about) for _ in range(machine.rows)]
        left = [reply] * machine.rows
        while min(left) > 0:
            asked = machine.gamma.choose(models, [MAX_GAMMA] * machine.rows, machine.rows)
            drafts, steps, tokens = _grown(machine, models, asked, sure, truth)
            buckets, trees = [each.buckets for each in drafts], [each.tree for each in drafts]
            kept = machine.gamma.trim(models, buckets, machine.rows, trees)
            machine.play(models, drafts, steps, kept, tokens)
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
        for k in choose_expanded(growths, [gain for _, gain in promises]):
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
