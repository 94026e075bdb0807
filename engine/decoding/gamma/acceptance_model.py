"""Acceptance model: how likely each drafted token is to be accepted.

Tokens of one confidence bucket share one unknown acceptance rate α. Each request has, for every bucket, a belief: a
distribution over a grid of rates, updated by Bayes' rule. Its prior is what earlier requests have shown.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from operator import mul
from pathlib import Path
from typing import Any, Final, NamedTuple

from specchat.engine.decoding.drafter import DrafterProfile, RowProfile
from specchat.engine.decoding.tree import LONGEST, Tree
from specchat.engine.files import FILE_MODE, make_folder, replacing
from specchat.engine.request import MAX_GAMMA

_RATES: Final = (0.004, 0.03, 0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 0.97, 0.995)
"""Grid of acceptance rates."""
_SHARES: Final = (*(1.0,) * 9, 0.7, 0.3)
"""What each counts where nothing is expected: the last two are close to each other."""
_POWERS: Final = [[rate**n for rate in _RATES] for n in range(MAX_GAMMA + 1)]
_STRENGTH = 4.0
"""Number of tested tokens that an expected rate counts for."""
_CHANGE = 0.04
"""Probability that the text has changed, so that the prior holds again, within `_ROUNDS` rounds."""
_ROUNDS = 8
"""Rounds after which that is applied: less often takes less time."""
_UNLEARNED = 0.1
"""Share of the first prior that no experience removes, so that better text is recognised."""
_LEARN = 1 / 20, 1 / 400
"""Weight of a test of a bucket in its prior: of the first one, and of late ones."""
_RECENT, _TRUST = 1 / 40, 2.0
"""Weight of a draft in the ratio of accepted to expected tokens, and tokens that its start value of 1 counts for."""


@dataclass(frozen=True, slots=True)
class VerifiedDraft:
    """Verified and accepted tokens of one row's draft."""

    buckets: Sequence[int]
    accepted: int
    tree: Tree | None = None
    path: Sequence[int] = ()
    """The accepted tokens of a tree."""
    steps: int = 0
    """Draft steps that it took."""

    def tested(self) -> tuple[list[int], list[int]]:
        """Buckets of the accepted tokens, and of the rejected ones, whose parents were accepted."""
        if self.tree is None:
            return list(self.buckets[: self.accepted]), list(self.buckets[self.accepted : self.accepted + 1])
        children = {child for token in (0, *self.path) for child in self.tree.children[token]}
        rejected = children.difference(self.path)
        return [self.buckets[token - 1] for token in self.path], [self.buckets[token - 1] for token in rejected]


class Experience:
    """Statistics of earlier requests for one drafter: priors of its buckets, calibration and gain.

    Args:
        profile: of the drafter; all tokens are in bucket 0 if it gives none. Each method has its own calibration.
    """

    def __init__(self, profile: DrafterProfile) -> None:
        self._first = {bucket: _around(profile.expected_rates.get(bucket)) for bucket in profile.buckets or (0,)}
        self.priors = dict(self._first)
        self._tests = dict.fromkeys(self.priors, 0)
        self._calibrated = bool(profile.expected_rates)
        self.methods = profile.methods
        self.method_of = {bucket: bisect_right(self.methods, bucket) - 1 for bucket in sorted(self.priors)}
        """Index of the method of every bucket, in ascending order."""
        self._counts = [(_TRUST, _TRUST)] * len(self.methods)
        """Accepted and expected tokens, by method."""
        self.factors = [1.0] * len(self.methods)
        """Accepted / expected tokens of each method, at most 1: each bucket by itself is tested rarely."""
        self.gain: dict[int, float] = {}
        """Gain of growing drafts, by batch size: average of the tokens expected to be accepted minus the draft's price.
        The number of accepted tokens varies so much that a few misses would end drafts that pay."""

    def state(self) -> dict[str, Any]:
        """The statistics as values for JSON."""
        priors = [[bucket, self._tests[bucket], belief] for bucket, belief in self.priors.items()]
        return {"priors": priors, "counts": self._counts, "gain": list(self.gain.items())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with the `state` of another session.

        Raises:
            KeyError, TypeError, ValueError: it is not one for these buckets; nothing was changed.
        """
        counts = [(float(accepted), float(expected)) for accepted, expected in state["counts"]]
        gain = {int(rows): float(value) for rows, value in state["gain"]}
        tests = {bucket: int(count) for bucket, count, _ in state["priors"]}
        priors = {bucket: [float(weight) for weight in belief] for bucket, _, belief in state["priors"]}
        valid = all(len(belief) == len(_RATES) and 0.99 < sum(belief) < 1.01 for belief in priors.values())
        valid = valid and len(counts) == len(self._counts) and all(0 < each < inf for pair in counts for each in pair)
        if priors.keys() != self._first.keys() or not valid:
            raise ValueError("not an experience with these buckets")
        self.priors, self._tests, self.gain, self._counts = priors, tests, gain, counts
        self.factors = _ratios(counts)

    def learn(self, bucket: int, belief: Sequence[float]) -> None:
        """Move a bucket's prior towards the belief of a row that has just been updated."""
        first, late = _LEARN
        self._tests[bucket] += 1
        weight = max(late, first / (1 + first * self._tests[bucket]))
        self.priors[bucket] = [
            prior + weight * (new + _UNLEARNED * (old - new) - prior)
            for prior, new, old in zip(self.priors[bucket], belief, self._first[bucket], strict=True)
        ]

    def calibrate(self, bucket: int, accepted: int, expected: float) -> None:
        """Learn how many tested tokens of a draft were accepted, and how many were expected to be.

        Args:
            bucket: of one of the tokens.
            accepted: of the tested tokens.
            expected: of them.
        """
        if self._calibrated:
            method = self.method_of[bucket]
            old_accepted, old_expected = self._counts[method]
            self._counts[method] = (_fading(old_accepted) + accepted, _fading(old_expected) + expected)
            self.factors = _ratios(self._counts)


class _Rates(NamedTuple):
    """Acceptance rates of one request."""

    factors: list[float]
    """Factors of the experience that the rates were computed with."""
    rates: dict[int, float]
    repeat_rates: dict[int, float]
    surest: float


class AcceptanceModel:
    """Acceptance model of one request.

    Args:
        drafter: its name.
        experience: with this drafter and kind of sampling.
        about: the drafter for this request.
    """

    def __init__(self, drafter: str, experience: Experience, about: RowProfile) -> None:
        self.drafter, self.experience, self.growing = drafter, experience, about.grows
        self.one_step = about.one_step
        self.longest = LONGEST if about.shapes and not about.one_step else MAX_GAMMA
        self._shapes = about.shapes
        self._beliefs = dict(experience.priors)
        self._round = 0
        """Rounds since `_fade`."""
        self._means = {bucket: _means(belief) for bucket, belief in self._beliefs.items()}
        """E[αⁿ] by bucket and n, up to the largest n that was needed, at least 2."""
        self._offered: dict[int, list[float]] = {}
        """Results of `offered` for unchanged beliefs."""
        self._known: _Rates | None = None
        """For unchanged beliefs."""

    @property
    def surest(self) -> float:
        """The highest of the rates of the last method."""
        return self._all_rates().surest

    @property
    def rates(self) -> dict[int, float]:
        """Probability by bucket that a token is accepted if its parent was."""
        return self._all_rates().rates

    @property
    def repeat_rates(self) -> dict[int, float]:
        """`rates` after a token of the same bucket: both tokens share one unknown rate."""
        return self._all_rates().repeat_rates

    def _all_rates(self) -> _Rates:
        self._fade()
        factors = self.experience.factors
        if self._known is None or factors != self._known.factors:
            means = [(b, self._means[b], factors[method]) for b, method in self.experience.method_of.items()]
            rates = {bucket: mean[1] * factor for bucket, mean, factor in means}
            repeat_rates = {bucket: mean[2] / mean[1] * factor for bucket, mean, factor in means}
            surest = max(rate for bucket, rate in rates.items() if bucket >= self.experience.methods[-1])
            self._known = _Rates(factors, rates, repeat_rates, surest)
        return self._known

    def survival(self, buckets: Sequence[int], tree: Tree | None = None) -> list[float]:
        """Probability that each token is accepted, and with it all that it follows.

        Tokens of one bucket that follow each other share one unknown rate: the mean is over its powers.

        Args:
            buckets: of the tokens.
            tree: None for a chain.
        """
        self._fade()
        method = self.experience.method_of[buckets[0]] if buckets else 0
        factor, chances, runs = self.experience.factors[method], [1.0], [0]
        for i, parent in enumerate(range(len(buckets)) if tree is None else tree.parents):
            bucket = buckets[i]
            run = runs[parent] if parent and buckets[parent - 1] == bucket else 0
            ratio = self._mean_power(bucket, run + 1) / self._mean_power(bucket, run)
            chances.append(chances[parent] * factor * ratio)
            runs.append(run + 1)
        return chances[1:]

    def offered(self, gamma: int) -> list[float]:
        """`survival` of what the drafter offers for γ: if unknown, a chain of the most promising bucket of the first
        method, which takes draft steps."""
        self._fade()
        key = gamma if self._shapes else MAX_GAMMA
        if key not in self._offered:
            methods = self.experience.method_of
            first = {bucket: rate for bucket, rate in self.rates.items() if not methods[bucket]}
            offer = self._shapes(key) if self._shapes else ([max(first, key=first.__getitem__)] * key, None)
            self._offered[key] = self.survival(*offer)
        return self._offered[key] if self._shapes else self._offered[key][:gamma]

    def observe(self, verified: VerifiedDraft | None) -> None:
        """Learn from a round: only tested tokens count. None for a round without a draft."""
        self._round += 1
        if verified is None or not verified.buckets:
            return
        self._fade()
        accepted, rejected = verified.tested()
        tested = (*accepted, *rejected)
        expected = sum(self._means[bucket][1] for bucket in tested)
        self.experience.calibrate(verified.buckets[0], len(accepted), expected)
        for bucket in set(tested):
            hits, misses = accepted.count(bucket), rejected.count(bucket)
            likelihood = _likelihood(hits, misses)
            self._believe(bucket, _normalised(list(map(mul, self._beliefs[bucket], likelihood))))
            self.experience.learn(bucket, self._beliefs[bucket])

    def _fade(self) -> None:
        """Move beliefs towards the prior, as often as the text may have changed since the last time."""
        times, self._round = divmod(self._round, _ROUNDS)
        if times:
            share = 1 - (1 - _CHANGE) ** times
            for bucket, prior in self.experience.priors.items():
                if self._beliefs[bucket] is not prior:  # most buckets have never been tested
                    mixed = [a + share * (b - a) for a, b in zip(self._beliefs[bucket], prior, strict=True)]
                    self._believe(bucket, mixed)

    def _believe(self, bucket: int, belief: list[float]) -> None:
        self._beliefs[bucket], self._means[bucket] = belief, _means(belief)
        self._offered.clear()
        self._known = None

    def _mean_power(self, bucket: int, n: int) -> float:
        means = self._means[bucket]
        while len(means) <= n:
            means.append(sum(map(mul, self._beliefs[bucket], _POWERS[len(means)])))
        return means[n]


def _ratios(counts: Sequence[tuple[float, float]]) -> list[float]:
    """Accepted / expected tokens, at most 1."""
    return [min(1.0, accepted / expected) for accepted, expected in counts]


def _fading(count: float) -> float:
    """A count of tokens on its way back to that before any test."""
    return count - _RECENT * (count - _TRUST)


def _means(belief: Sequence[float]) -> list[float]:
    """E[αⁿ] for n = 0, 1 and 2."""
    return [sum(belief), sum(map(mul, belief, _RATES)), sum(map(mul, belief, _POWERS[2]))]


@lru_cache(maxsize=256)
def _likelihood(hits: float, misses: float) -> Sequence[float]:
    """Likelihood of these numbers of accepted and rejected tokens at each rate."""
    return [rate**hits * (1 - rate) ** misses for rate in _RATES]


def _around(rate: float | None) -> list[float]:
    """Belief for an expected rate; nearly uniform for None."""
    hits, misses = (0.0, 0.0) if rate is None else (_STRENGTH * rate, _STRENGTH * (1 - rate))
    return _normalised([*map(mul, _SHARES, _likelihood(hits, misses))])


def _normalised(weights: Sequence[float]) -> list[float]:
    total = sum(weights)
    return [weight / total for weight in weights]


_MOST = 64
"""Sets of models in the file; those used longest ago are dropped."""


class Experiences:
    """`Experience` by drafter and kind of sampling: sampled replies accept fewer tokens, and of drawn drafts others.

    A file that is missing or damaged, or has other buckets, is ignored.

    Args:
        file: JSON, shared by all sets of models; None for none.
        models: names of target and drafts, which an experience belongs to.
    """

    def __init__(self, file: Path | None = None, models: str = "") -> None:
        self._file, self._models = file, models
        self._known: dict[str, Experience] = {}
        self._stored = self._read().get(models, {})

    def of(self, drafter: str, sampling: str, profile: DrafterProfile) -> Experience:
        """The experience with a drafter and a kind of sampling."""
        name = f"{drafter}, {sampling}"
        if name not in self._known:
            experience = self._known[name] = Experience(profile)
            with suppress(KeyError, TypeError, ValueError):
                experience.restore(self._stored[name])
        return self._known[name]

    def save(self) -> None:
        """Write the records to the file, if any; a folder that cannot be written is ignored."""
        if self._file is None or not self._known:
            return
        learnt = {name: experience.state() for name, experience in self._known.items()}
        others = [(models, each) for models, each in self._read().items() if models != self._models]
        with suppress(OSError):
            make_folder(self._file.parent)
            with replacing(self._file) as part:
                part.touch(FILE_MODE)
                part.write_text(json.dumps(dict([*others[1 - _MOST :], (self._models, self._stored | learnt)])))
            self._file.chmod(FILE_MODE)  # `replacing` keeps the permissions of an older file

    def _read(self) -> dict[str, Any]:
        with suppress(OSError, ValueError, RecursionError):
            found = json.loads(self._file.read_text("utf-8")) if self._file else {}
            if isinstance(found, dict) and all(isinstance(each, dict) for each in found.values()):
                return found
        return {}
