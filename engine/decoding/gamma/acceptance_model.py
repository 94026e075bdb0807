"""Acceptance model: how likely each drafted token is to be accepted.

Tokens of one confidence bucket share one unknown acceptance rate α. Each request has, for every bucket, a distribution
over a grid of rates, updated by Bayes' rule; its prior is what earlier requests with the drafter have shown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specchat.engine.decoding.proposal import Offers
from specchat.engine.decoding.tree import Tree
from specchat.engine.request import MAX_GAMMA

_RATES = np.array([0.004, 0.03, 0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 0.97])
"""Grid of acceptance rates."""
_POWERS = _RATES[:, None] ** np.arange(MAX_GAMMA + 2)
_LATER_RATE = 0.05
"""Expected rate of a token that is offered next to a likelier one."""
_STRENGTH = 4.0
"""Number of tested tokens that an expected rate counts for."""
_CHANGE = 0.01
"""Probability per round that the text has changed, so that the prior holds again."""
_ROUNDS = 8
"""Rounds after which that is applied: less often takes less time."""
_UNLEARNED = 0.15
"""Share of the first prior that no experience removes, so that better text is recognised."""
_LEARN = 1 / 50, 1 / 400
"""Weight of a round in the prior: of the first one, and of late ones."""
_CALIBRATION, _TRUST = 1 / 24, 2.0
"""Weight of a draft in the ratio of accepted to expected tokens, and tokens that its start value of 1 counts for."""


@dataclass(frozen=True, slots=True)
class VerifiedDraft:
    """One row's verified draft, and what was accepted of it."""

    buckets: Sequence[int]
    accepted: int
    tree: Tree | None = None
    path: Sequence[int] = ()
    """The accepted tokens of a tree."""

    def tested(self, keys: Sequence[int]) -> tuple[list[int], list[int]]:
        """The keys of accepted tokens, and of tokens that were rejected in favour of another."""
        if self.tree is None:
            return list(keys[: self.accepted]), list(keys[self.accepted : self.accepted + 1])
        accepted = set(self.path)
        siblings = [child for token in (0, *self.path) for child in self.tree.children[token] if child not in accepted]
        return [keys[token - 1] for token in self.path], [keys[token - 1] for token in siblings]


class Experience:
    """What earlier requests have shown about one drafter: priors of its buckets, calibration and gain.

    Args:
        buckets: confidence buckets; empty if the drafter gives none, and all tokens share one.
        later: buckets of tokens that are offered next to a likelier one.
        expected: expected acceptance rates, by bucket.
    """

    def __init__(self, buckets: Sequence[int], later: Collection[int], expected: Mapping[int, float]) -> None:
        rates = dict.fromkeys(later, _LATER_RATE) | dict(expected)
        self.index = {bucket: i for i, bucket in enumerate(buckets or (0,))}
        self.graded = bool(buckets)
        self._base = np.array([_around(rates.get(bucket)) for bucket in self.index])
        self.prior = self._base.copy()
        """[buckets, rates]."""
        self._rounds = np.zeros(len(self.index))
        self._calibrated = bool(expected)
        self._accepted = self._expected = _TRUST
        self.factor = 1.0
        """Accepted / expected tokens, at most 1: buckets are tested rarely, so each learns slowly by itself."""
        self.gain: dict[int, float] = {}
        """Of growing drafts, by batch size: average of accepted tokens minus the price of the draft."""

    def learn(self, tested: Collection[int], beliefs: np.ndarray) -> None:
        """Move the priors of tested buckets (indices) towards the beliefs of a row."""
        first, late = _LEARN
        for i in tested:
            self._rounds[i] += 1
            target = _UNLEARNED * self._base[i] + (1 - _UNLEARNED) * beliefs[i]
            self.prior[i] += max(late, 1 / (1 / first + self._rounds[i])) * (target - self.prior[i])

    def calibrate(self, accepted: int, expected: float) -> None:
        """Learn how many tested tokens of a draft were accepted, and how many were expected to be."""
        if self._calibrated:
            self._accepted += accepted - _CALIBRATION * (self._accepted - _TRUST)
            self._expected += expected - _CALIBRATION * (self._expected - _TRUST)
            self.factor = min(1.0, self._accepted / self._expected)


class AcceptanceModel:
    """Acceptance model of one request.

    Args:
        drafter: its name.
        experience: with this drafter and kind of sampling.
        offers: what the drafter will offer, if known before it drafts.
        growing: whether the drafter decides on the size of a draft while it drafts, within a `Budget`.
    """

    def __init__(
        self, drafter: str, experience: Experience, offers: Offers | None = None, *, growing: bool = False
    ) -> None:
        self.drafter = drafter
        self.experience = experience
        self.offers = offers
        self.growing = growing
        self.price: float | None = None
        """Accepted tokens that a growing draft of the current round has to gain."""
        self.graded = experience.graded
        self._beliefs = experience.prior.copy()
        self._round = 0
        self._powers: dict[int, list[float]] = {}
        """By bucket, E[αⁿ]."""
        self._chances: dict[tuple[bool, int], list[float]] = {}
        """Results of `best_case` and `offered` for unchanged beliefs."""

    def rate(self, bucket: int) -> float:
        """Probability that a token of the bucket is accepted if its parent was."""
        return self._mean_powers(bucket)[1] * self.experience.factor

    def survival(self, buckets: Sequence[int], tree: Tree | None = None) -> list[float]:
        """Probability that each token is accepted, and with it all that it follows.

        Tokens of one bucket share one unknown rate: the mean is over its powers, not a power of the mean.

        Args:
            buckets: of the tokens.
            tree: None for a chain.
        """
        parents = range(len(buckets)) if tree is None else tree.parents
        chances, counts = [1.0], [dict[int, int]()]
        for bucket, parent in zip(self._keys(buckets), parents, strict=True):
            n, powers = counts[parent].get(bucket, 0), self._mean_powers(bucket)
            chances.append(chances[parent] * self.experience.factor * powers[n + 1] / powers[n])
            counts.append(counts[parent] | {bucket: n + 1})
        return chances[1:]

    def best_case(self, count: int) -> list[float]:
        """`survival` of a chain not yet drafted, with all tokens in the most promising bucket."""
        if (False, count) not in self._chances:
            best = max(self.experience.index, key=self.rate)
            self._chances[False, count] = self.survival([best] * count)
        return self._chances[False, count]

    def offered(self, gamma: int) -> list[float]:
        """`survival` of what the drafter offers for γ."""
        if (True, gamma) not in self._chances:
            assert self.offers is not None
            self._chances[True, gamma] = self.survival(*self.offers(gamma)) if gamma else []
        return self._chances[True, gamma]

    def observe(self, verified: VerifiedDraft | None) -> None:
        """Learn from a round: only tested tokens count. None for a round without a draft."""
        self._round += 1
        if not self._round % _ROUNDS:
            self._beliefs += (1 - (1 - _CHANGE) ** _ROUNDS) * (self.experience.prior - self._beliefs)
            self._forget(self.experience.index)
        if verified is None or not verified.buckets:
            return
        accepted, rejected = verified.tested(self._keys(verified.buckets))
        expected = sum(self._mean_powers(bucket)[1] for bucket in (*accepted, *rejected))
        self.experience.calibrate(len(accepted), expected)
        tested = {bucket: self.experience.index[bucket] for bucket in (*accepted, *rejected)}
        for bucket, i in tested.items():
            belief = self._beliefs[i] * _RATES ** accepted.count(bucket) * (1 - _RATES) ** rejected.count(bucket)
            self._beliefs[i] = belief / belief.sum()
        self.experience.learn(tested.values(), self._beliefs)
        self._forget(tested)

    def _keys(self, buckets: Sequence[int]) -> Sequence[int]:
        return buckets if self.graded else [0] * len(buckets)

    def _forget(self, buckets: Collection[int]) -> None:
        """Beliefs have changed."""
        self._chances.clear()
        for bucket in buckets:
            self._powers.pop(bucket, None)

    def _mean_powers(self, bucket: int) -> list[float]:
        if bucket not in self._powers:
            self._powers[bucket] = (self._beliefs[self.experience.index[bucket]] @ _POWERS).tolist()
        return self._powers[bucket]


def _around(rate: float | None) -> np.ndarray:
    """Distribution over the grid for an expected rate; uniform if there is none."""
    if rate is None:
        return np.full(len(_RATES), 1 / len(_RATES))
    weights = _RATES ** (_STRENGTH * rate) * (1 - _RATES) ** (_STRENGTH * (1 - rate))
    return weights / weights.sum()
