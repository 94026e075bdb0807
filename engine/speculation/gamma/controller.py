"""Adaptive γ: how many tokens to draft, and how many of them to verify, so that most tokens come out per second.

Three things are learnt while the engine runs: what a round costs (`engine.speculation.gamma.latency_model`), how likely
each drafted token is to be accepted (`engine.speculation.gamma.acceptance_model`), and the speed reached so far. A
token is then worth its place in a round if the chance that it is emitted exceeds what it costs at that speed.

Theory: Leviathan et al. 2023. Equation 1 gives the expected tokens of a round for one known α, (1 − α^(γ+1)) / (1 − α);
here it is 1 + Σᵢ P(the i-th drafted token is accepted), because α depends on the token and is known only roughly. So it
holds for a tree as well, where each token's chance is that of what it follows times its own.
Section 3.5 maximises tokens / time for one round. Over rounds that differ, what counts is Σ tokens / Σ time, and that
is maximised by maximising tokens − λ·time in every round, λ being the speed that results (Dinkelbach 1967).

The unit of time is the plain round (γ = 0) of the same batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import log
from types import MappingProxyType

from specchat.engine.request import MAX_GAMMA
from specchat.engine.runner.tree import LONGEST, Tree
from specchat.engine.speculation.gamma.acceptance_model import (
    EVEN,
    LOW,
    POSITIONS,
    AcceptanceModel,
    Prior,
    VerifiedDraft,
    around,
)
from specchat.engine.speculation.gamma.budget import Budget
from specchat.engine.speculation.gamma.latency_model import LatencyModel
from specchat.engine.speculation.proposal import Offers

LIMIT = MAX_GAMMA
"""Longest draft."""
_MEMORY = 1 / 16
"""Weight of one round in the speed reached so far."""
_PROBE = 0.01
"""Share of the time that may be lost on rounds that are run to learn something."""
_MOST_SAVED = 2.0
"""Plain rounds that may be lost at once, at the start or after a long time without a loss."""
_CURIOSITY = 0.1
"""What a row's growing drafts are thought to be worth at first, beyond what those of other rows have been."""
_TRIAL = 1.5
"""How much of a draft that has not paid must have been saved for it to be tried again, in its price."""
_LEAST_LOSS = 0.1
"""Price of a plain round that is run for comparison, in plain rounds, where little seems to be lost by it."""


class GammaController:
    """The controller of one engine. In each round: `choose`, draft, `trim`, verify, `observe`.

    A pass is padded to its longest draft, so a round has one draft length, good for all rows together, and every row
    uses as much of it as it can. `rows` is always the size of the batch, rows with a γ of their own included.
    """

    def __init__(self, latency: LatencyModel, limit: int = LIMIT) -> None:
        self._latency = latency
        self._limit = min(limit, LIMIT)
        self._priors: dict[str, dict[int, Prior]] = {}
        self._worths: dict[str, float] = {}
        """What growing drafts of each drafter have been worth of late, whatever the row."""
        self._speedup = 1.0
        """λ: tokens per row and plain round of time, of late."""
        self._saved = _MOST_SAVED
        """Plain rounds that may be lost on learning something."""
        self._round = 1.0
        """Cost of the round under way."""
        self._drafted = False
        """Whether a draft was verified since the last plain round."""

    def acceptance(
        self,
        drafter: str,
        buckets: Sequence[int] = (),
        later: Collection[int] = (),
        offers: Offers | None = None,
        expected: Mapping[int, float] = MappingProxyType({}),
        *,
        growing: bool = False,
    ) -> AcceptanceModel:
        """Start a row.

        Args:
            drafter: by name.
            buckets: the grades of confidence that it gives, if it gives any.
            later: those of tokens that it offers beside a likelier one.
            offers: what it will offer this row, if it knows.
            expected: the acceptance rate that tokens of a bucket are first thought to have.
            growing: whether it decides while it drafts, by a `budget`.
        """
        if drafter not in self._priors:
            keys = buckets or range(POSITIONS)
            bases = dict.fromkeys(later, LOW) | {key: around(rate) for key, rate in expected.items()}
            self._priors[drafter] = {key: Prior(bases.get(key, EVEN)) for key in keys}
        worth = self._worths.setdefault(drafter, 0.0) + _CURIOSITY
        return AcceptanceModel(drafter, self._priors[drafter], not buckets, offers, growing=growing, worth=worth)

    def budget(self, acceptance: AcceptanceModel, rows: int) -> Budget:
        """What a growing draft may cost. In plain rounds of time a token is worth 1 / λ."""
        price, passes = max(1.0, self._speedup), self._passes(rows)
        step = price * self._latency.further_step(acceptance.drafter, rows) / self._plain_s(rows)
        return Budget([price * (each - passes[0]) for each in passes], step, acceptance.rate)

    def choose(self, acceptances: Sequence[AcceptanceModel], rooms: Sequence[int], rows: int) -> list[int]:
        """γ to ask for, per row; 0 for a plain round.

        Args:
            forecasts: of the rows whose γ is adaptive.
            rooms: the most that each of them can use.
            rows: size of the batch.
        """
        gammas = [0] * len(acceptances)
        passes = self._passes(rows)
        growing = [i for i, f in enumerate(acceptances) if f.growing and rooms[i]]
        if growing and self._pays_to_grow([acceptances[i] for i in growing], rows):
            for i in growing:
                gammas[i] = rooms[i]
        for drafter in dict.fromkeys(f.drafter for f in acceptances if not f.growing):
            mine = [i for i, f in enumerate(acceptances) if f.drafter == drafter and not f.growing]
            step = self._draft_step(drafter, rows)
            best, speedup = self._longest([acceptances[i] for i in mine], [rooms[i] for i in mine], step, passes, rows)
            probe, final = step + passes[1] - passes[0], acceptances[mine[0]].by_position
            if best == 0 and any(rooms[i] for i in mine) and self._afford(probe, probe if final else step):
                best = 1
            elif best and final and self._compare(rows, best, speedup):
                best = 0
            for i in mine:
                gammas[i] = min(best, rooms[i])
        return gammas

    def _pays_to_grow(self, acceptances: Sequence[AcceptanceModel], rows: int) -> bool:
        """Whether growing drafts have paid of late; now and then one is tried where they have not."""
        if sum(acceptance.worth for acceptance in acceptances) > 0:
            # Where nothing has been drafted since the last plain round there is nothing new to compare.
            return not (self._drafted and self._compare(rows, 1, self._speedup))
        step = self._draft_step(acceptances[0].drafter, rows)
        # One measurement that was held up must not keep it from ever being made again.
        price = min(step, 1.0)
        return self._afford(_TRIAL * price, price)

    def _longest(
        self,
        acceptances: Sequence[AcceptanceModel],
        rooms: Sequence[int],
        step: float,
        passes: Sequence[float],
        rows: int,
    ) -> tuple[int, float]:
        """The γ to ask one drafter for, and the speedup to be expected of it."""
        rooms = [min(room, self._limit) for room in rooms]
        if any(acceptance.offers is None for acceptance in acceptances):
            chances = [acceptance.best_case(room) for acceptance, room in zip(acceptances, rooms, strict=True)]
            best, speedup, _ = self._best(chances, [v + step * n for n, v in enumerate(passes)], rows)
            return best, speedup
        longest, best_speedup, best_value = 0, 1.0, 0.0
        for gamma in range(1, min(max(rooms), LONGEST) + 1):
            pairs = [(f, min(gamma, room)) for f, room in zip(acceptances, rooms, strict=True) if room]
            chances = [f.survival(*f.offers(length)) for f, length in pairs if f.offers]
            rounds = [passes[0], *(v + step * gamma for v in passes[1:])]
            _, speedup, value = self._best(chances, rounds, rows)
            if value <= best_value and longest:
                break
            if value > best_value:
                longest, best_speedup, best_value = gamma, speedup, value
        return longest, best_speedup

    def trim(
        self,
        acceptances: Sequence[AcceptanceModel],
        asked: Sequence[int],
        proposed: Sequence[Sequence[int]],
        rows: int,
        trees: Sequence[Tree | None] = (),
    ) -> list[int]:
        """How many of the proposed tokens to verify, per row, from the first on.

        Only drafters that give buckets are trimmed: the others have said nothing that `choose` did not know.

        Args:
            forecasts: as for `choose`.
            asked: draft steps that were made for it.
            proposed: each token's bucket; anything where the drafter gives none.
            rows: size of the batch.
            trees: what follows what in each proposal, None for chains; nothing if all are.
        """
        passes = self._passes(rows)
        offers = list(zip(acceptances, proposed, trees or [None] * len(proposed), strict=True))
        settled = [
            acceptance.by_position or (acceptance.growing and tree is not None) for acceptance, _, tree in offers
        ]
        least = max((len(buckets) for (_, buckets, _), done in zip(offers, settled, strict=True) if done), default=0)
        chances = [
            acceptance.survival(buckets, tree)
            for (acceptance, buckets, tree), done in zip(offers, settled, strict=True)
            if not done
        ]
        best, speedup, _ = self._best(chances, passes, rows, least)
        open_to_change = any(buckets for buckets, done in zip(proposed, settled, strict=True) if not done)
        if best == 0 and open_to_change and self._afford(passes[1] - passes[0], passes[1] - passes[0]):
            best = max(n for n, seconds in enumerate(passes) if seconds <= passes[1])
        elif best and not least and self._compare(rows, best, speedup):
            best = 0
        kept = [len(p) if done else min(best, len(p)) for p, done in zip(proposed, settled, strict=True)]
        steps: dict[str, int] = {}
        for acceptance, gamma in zip(acceptances, asked, strict=True):
            steps[acceptance.drafter] = max(gamma, steps.get(acceptance.drafter, 0))
        drafting = {drafter: self._drafting(drafter, n, rows) for drafter, n in steps.items()}
        self._round = 1 + sum(drafting.values()) + passes[max(kept, default=0)] - passes[0]
        for (acceptance, buckets, tree), count in zip(offers, asked, strict=True):
            if acceptance.growing:
                verifying = passes[len(buckets) if tree else 0] - passes[0]
                cost = verifying + drafting[acceptance.drafter]
                acceptance.price = self._speedup * cost if count else None
        return kept

    def observe(self, acceptances: Sequence[AcceptanceModel], judged: Sequence[VerifiedDraft]) -> None:
        """Learn from the round: what was verified of each forecast's draft."""
        if not acceptances:
            return
        for acceptance, each in zip(acceptances, judged, strict=True):
            acceptance.observe(each)
            if acceptance.growing:
                known = self._worths.get(acceptance.drafter, 0.0)
                self._worths[acceptance.drafter] = known + _MEMORY / 4 * (acceptance.worth - known)
        self._drafted = any(each.buckets for each in judged)
        tokens = 1 + sum(each.accepted for each in judged) / len(judged)
        self._speedup += _MEMORY * (tokens / self._round - self._speedup)
        # A probe that succeeds earns the next one: only what is lost in the end counts as lost.
        self._saved = min(_MOST_SAVED, self._saved + _PROBE * self._round + max(0.0, tokens - self._round))

    def _best(
        self, chances: Sequence[Sequence[float]], rounds: Sequence[float], rows: int, least: int = 0
    ) -> tuple[int, float, float]:
        """The n ≥ `least` that maximises tokens − λ·time, the speedup to be expected of it, and that maximum.

        Args:
            chances: per row, the survival of each token.
            rounds: the time of a round for each n.
            rows: size of the batch.
            least: the draft length that some other row has in any case.
        """
        gains = [0.0] * max(map(len, chances), default=0)
        for row in chances:
            for i, chance in enumerate(row):
                gains[i] += chance
        price = max(1.0, self._speedup) * rows
        best, best_value, tokens, speedup = least, sum(gains[:least]), 0.0, 1.0
        for n, gain in enumerate(gains, 1):
            tokens += gain
            value = tokens - price * (rounds[n] - rounds[least])
            if n > least and value > best_value:
                best, best_value, speedup = n, value, (1 + tokens / rows) / (1 + rounds[n] - rounds[0])
        return best, speedup, best_value

    def _compare(self, rows: int, gamma: int, speedup: float) -> bool:
        """Whether to run a plain round instead, because the speedup is within the error of the cost table.

        Without this an engine that always drafts would never learn that plain rounds are faster.
        """
        if self._latency.doubt(rows, gamma + 1) < log(max(1.0, speedup)):
            return False
        lost = max(_LEAST_LOSS, speedup - 1)
        return self._afford(lost, lost)

    def _afford(self, price: float, now: float) -> bool:
        """Whether so much has been saved; if so, `now` of it is spent at once."""
        if self._saved < price:
            return False
        self._saved -= now
        return True

    def _drafting(self, drafter: str, steps: int, rows: int) -> float:
        """Time of so many draft steps."""
        if not steps:
            return 0.0
        further = self._latency.further_step(drafter, rows) / self._plain_s(rows)
        return self._latency.first_step(drafter, rows) / self._plain_s(rows) + (steps - 1) * further

    def _draft_step(self, drafter: str, rows: int) -> float:
        return self._latency.draft_step(drafter, rows) / self._plain_s(rows)

    def _passes(self, rows: int) -> list[float]:
        """The passes that verify 0, 1, 2, … drafted tokens."""
        plain_s = self._plain_s(rows)
        return [seconds / plain_s for seconds in self._latency.verify_up_to(rows, self._limit + 1)]

    def _plain_s(self, rows: int) -> float:
        return self._latency.verify(rows, 1) + self._latency.rest(rows)
