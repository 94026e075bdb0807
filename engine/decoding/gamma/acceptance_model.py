"""Acceptance model: how likely each token that a drafter offers is to be accepted.

One `AcceptanceModel` per request, on priors that outlive it. Every token is in a bucket, its drafter's grade of
confidence, and tokens of one bucket share one unknown acceptance rate: a belief over a few levels of it, updated by
Bayes' rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import mul

from specchat.engine.decoding.proposal import Offers
from specchat.engine.decoding.tree import Tree
from specchat.engine.request import MAX_GAMMA

_LEVELS = (0.004, 0.03, 0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 0.97)
"""Acceptance rates that a belief is spread over."""
_POWERS = [[level**n for level in _LEVELS] for n in range(MAX_GAMMA + 1)]
_MISSES = [1 - level for level in _LEVELS]
EVEN = [1 / len(_LEVELS)] * len(_LEVELS)
LOW = [miss**6 / sum(each**6 for each in _MISSES) for miss in _MISSES]
"""What is thought at first of a token that is offered beside a likelier one: 0.06 on average."""
_STRENGTH = 4.0
"""How many tokens' worth of experience an expected rate stands for."""
_STALE = 8
"""Rounds after which a belief that nothing has tested takes in that the text may have changed."""
POSITIONS = 2
"""Buckets of a drafter that does not say how sure it is: its first token, and any later one."""
_SHARE = 0.25
"""Weight of a token at one position as evidence about the other positions."""
_HAZARD = 0.01
"""Chance per round that the text has changed and what is believed of a row is void."""
_OPEN_MIND = 0.15
"""Share of every prior that no experience takes away, so that a better text is recognised when it comes."""
_LEARN = 1 / 400
"""Weight of one round in the prior for later requests; the first rounds weigh more."""
_TRUST = 2.0
"""Accepted tokens that it takes to say as much about all grades as their rates do."""
_RECALL = 1 / 24
"""Weight of one draft in that."""
_NEVER = 0.01
"""Chance below which no further token is considered."""


@dataclass(frozen=True, slots=True)
class VerifiedDraft:
    """One row's draft as it was verified, and what was accepted of it."""

    buckets: Sequence[int]
    accepted: int
    tree: Tree | None = None
    path: Sequence[int] = ()
    """Of a tree: the tokens accepted."""

    def tested(self, keys: Sequence[int]) -> tuple[list[int], list[int]]:
        """The keys of tokens that were accepted, and of those that something else took the place of."""
        if self.tree is None:
            return list(keys[: self.accepted]), list(keys[self.accepted : self.accepted + 1])
        kept = set(self.path)
        beside = [child for token in (0, *self.path) for child in self.tree.children[token] if child not in kept]
        return [keys[token - 1] for token in self.path], [keys[token - 1] for token in beside]


def around(rate: float) -> list[float]:
    """A belief about an acceptance rate that is expected."""
    weights = [level ** (_STRENGTH * rate) * (1 - level) ** (_STRENGTH * (1 - rate)) for level in _LEVELS]
    return [weight / sum(weights) for weight in weights]


class Prior:
    """What earlier requests have shown about one bucket of one drafter.

    Args:
        base: what is thought before anything is known.
    """

    def __init__(self, base: Sequence[float] = EVEN) -> None:
        self._kept = [_OPEN_MIND * each for each in base]
        self._rounds = 0
        self.weights = list(base)

    def learn(self, belief: Sequence[float]) -> None:
        """Move towards the belief of a row that has just been tested, as far as the base leaves room for it."""
        self._rounds += 1
        step = max(_LEARN, 1 / (50 + self._rounds))
        self.weights = [
            weight + step * ((1 - _OPEN_MIND) * each + kept - weight)
            for weight, each, kept in zip(self.weights, belief, self._kept, strict=True)
        ]


class Calibration:
    """By how much the rates that a drafter's grades are expected to have are too high: what was accepted over them.

    A grade is tested rarely, so each by itself learns slowly that drafts are worse than was thought at first.
    """

    def __init__(self) -> None:
        self._accepted = self._expected = _TRUST
        self.factor = 1.0
        """What every rate is to be multiplied by; 1 at most."""

    def learn(self, accepted: float, expected: float) -> None:
        """Take in a draft: how many of its tested tokens were accepted, and how many were expected to be."""
        self._accepted += accepted - _RECALL * (self._accepted - _TRUST)
        self._expected += expected - _RECALL * (self._expected - _TRUST)
        self.factor = min(1.0, self._accepted / self._expected)


class AcceptanceModel:
    """Acceptance model of one request: for each bucket of tokens a belief over their acceptance rate."""

    def __init__(
        self,
        drafter: str,
        priors: dict[int, Prior],
        calibration: Calibration | None,
        by_position: bool,
        offers: Offers | None = None,
        *,
        growing: bool = False,
        sampled: bool = False,
    ) -> None:
        self.drafter = drafter
        self.kind = (drafter, sampled)
        """Whose experience is shared."""
        self.offers = offers
        self.growing = growing
        """Whether the drafter decides while it drafts, by these rates and by prices."""
        self.worth, self.worth_at = 0.0, 0
        """Of growing drafts: tokens gained beyond their price of late, and in batches of which size."""
        self.price: float | None = None
        """Tokens that the growing draft of this round has to gain; None where there is none."""
        self.by_position = by_position
        """The drafter gives no buckets; a token's bucket is its place in the draft."""
        self._priors = priors
        self._calibration = calibration
        self._beliefs = {bucket: prior.weights for bucket, prior in priors.items()}
        self._means: dict[int, list[float]] = {}
        self._offered: dict[int, list[float]] = {}
        """`survival` of what is offered for each γ, while nothing has been learnt."""
        self._best: dict[int, list[float]] = {}
        """`best_case` of each length, likewise."""
        self._round = 0
        self._touched = dict.fromkeys(priors, 0)
        """Per bucket, the round up to which its belief takes in that the text may have changed."""

    def rate(self, bucket: int) -> float:
        """The chance that a token of this bucket is accepted where the one before it was."""
        return self._mean_power(bucket, 1) * self._factor

    def survival(self, buckets: Sequence[int], tree: Tree | None = None) -> list[float]:
        """For each of these tokens the probability that it is accepted: so are all that it follows.

        Tokens of one bucket share one unknown rate, so the mean is over powers of it, not a power of the mean.
        A chain's list ends early where the probability does.

        Args:
            buckets: of the tokens.
            tree: what follows what; None for a chain.
        """
        keys = self.keys(buckets)
        return self._chain_survival(keys) if tree is None else self._tree_survival(keys, tree)

    def _chain_survival(self, keys: Sequence[int]) -> list[float]:
        chance, counts, chances, factor = 1.0, dict[int, int](), list[float](), self._factor
        for bucket in keys:
            n = counts.get(bucket, 0)
            chance *= factor * self._mean_power(bucket, n + 1) / self._mean_power(bucket, n)
            if chance < _NEVER:
                break
            chances.append(chance)
            counts[bucket] = n + 1
        return chances

    def _tree_survival(self, keys: Sequence[int], tree: Tree) -> list[float]:
        chances, counts, factor = [1.0], [dict[int, int]()], self._factor
        for bucket, parent in zip(keys, tree.parents, strict=True):
            n = counts[parent].get(bucket, 0)
            chances.append(chances[parent] * factor * self._mean_power(bucket, n + 1) / self._mean_power(bucket, n))
            counts.append(counts[parent] | {bucket: n + 1})
        return chances[1:]

    def best_case(self, count: int) -> list[float]:
        """`survival` of a draft not yet made, at its best: all tokens in the most promising bucket."""
        self._forget_stale()
        known = self._best.get(count)
        if known is None:
            known = self._best[count] = self.survival([0] * count) if self.by_position else self._most_promising(count)
        return known

    def _most_promising(self, count: int) -> list[float]:
        best = max(self._beliefs, key=lambda bucket: self._mean_power(bucket, 1))
        self._mean_power(best, count)
        chances = self._means[best][1 : count + 1]
        likely = next((n for n, chance in enumerate(chances) if chance < _NEVER), count)
        return chances[:likely]

    def offered(self, gamma: int) -> list[float]:
        """`survival` of what is offered for a γ."""
        self._forget_stale()
        known = self._offered.get(gamma)
        if known is None:
            assert self.offers is not None
            known = self._offered[gamma] = self.survival(*self.offers(gamma)) if gamma else []
        return known

    def _forget_stale(self) -> None:
        """Chances that were worked out before the text may have changed count no more."""
        if not self._round % _STALE:
            self._offered.clear()
            self._best.clear()

    @property
    def _factor(self) -> float:
        return self._calibration.factor if self._calibration else 1.0

    def skip(self) -> None:
        """A round without a draft has passed."""
        self._round += 1

    def observe(self, judged: VerifiedDraft) -> None:
        """Bayes' rule over the tested tokens; what lies behind a rejection, or beyond the draft, tells nothing."""
        self._round += 1
        if not judged.buckets:
            return
        self._offered.clear()
        self._best.clear()
        hits, misses = judged.tested(self.keys(judged.buckets))
        if self._calibration:
            self._calibration.learn(len(hits), sum(self._mean_power(bucket, 1) for bucket in (*hits, *misses)))
        share = _SHARE if self.by_position else 0.0
        for bucket in self._beliefs if self.by_position else dict.fromkeys((*hits, *misses)):
            hit, miss = ((1 - share) * keys.count(bucket) + share * len(keys) for keys in (hits, misses))
            belief = [b * likely for b, likely in zip(self._current(bucket), _likelihood(hit, miss), strict=True)]
            total = sum(belief)
            self._beliefs[bucket] = belief = [b / total for b in belief]
            if bucket in hits or bucket in misses:
                self._priors[bucket].learn(belief)

    def _current(self, bucket: int) -> list[float]:
        """The belief now: in any of the rounds since it was last looked at the text may have changed."""
        changed = 1 - (1 - _HAZARD) ** (self._round - self._touched[bucket])
        self._touched[bucket] = self._round
        self._means.pop(bucket, None)
        return [b + changed * (p - b) for b, p in zip(self._beliefs[bucket], self._priors[bucket].weights, strict=True)]

    def keys(self, buckets: Sequence[int]) -> Sequence[int]:
        """Belief key per token: its confidence bucket, or its draft position."""
        if self.by_position:
            return [min(i, POSITIONS - 1) for i in range(len(buckets))]
        return buckets

    def _mean_power(self, bucket: int, n: int) -> float:
        """E[αⁿ] under the belief, worked out when that has changed."""
        if self._round - self._touched[bucket] >= _STALE:
            self._beliefs[bucket] = self._current(bucket)
        means = self._means.get(bucket)
        if means is None:
            means = self._means[bucket] = [1.0]
        while len(means) <= n:
            means.append(sum(map(mul, self._beliefs[bucket], _POWERS[len(means)])))
        return means[n]


@lru_cache(maxsize=1024)
def _likelihood(hits: float, misses: float) -> list[float]:
    """Of so many accepted tokens and so many refused ones, at each level."""
    return [level**hits * miss**misses for level, miss in zip(_LEVELS, _MISSES, strict=True)]
