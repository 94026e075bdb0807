"""Adaptive γ: how many tokens to draft, and how many of them to verify, so that most tokens come out per second.

Three things are learnt while the engine runs: what a round costs (`engine.decoding.gamma.latency_model`), how likely
each drafted token is to be accepted (`engine.decoding.gamma.acceptance_model`), and the speed reached so far. A
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
from types import MappingProxyType

from specchat.engine.decoding.gamma.acceptance_model import (
    EVEN,
    LOW,
    POSITIONS,
    AcceptanceModel,
    Calibration,
    Prior,
    VerifiedDraft,
    around,
)
from specchat.engine.decoding.gamma.budget import Budget
from specchat.engine.decoding.gamma.latency_model import LatencyModel
from specchat.engine.decoding.gamma.round_costs import RoundCosts
from specchat.engine.decoding.gamma.shared_pass import SharedPass
from specchat.engine.decoding.gamma.worth import Worths
from specchat.engine.decoding.proposal import Offers
from specchat.engine.decoding.tree import LONGEST, Tree
from specchat.engine.request import MAX_GAMMA

LIMIT = MAX_GAMMA
"""Longest draft."""
_MEMORY = 1 / 16
"""Weight of one round in the speed reached so far."""
_PROBE = 0.01
"""Share of the time that may be lost on rounds that are run to learn something."""
_MOST_SAVED = 2.0
"""Plain rounds that may be lost at once, at the start or after a long time without a loss."""
_TRIAL = 1.5
"""How much of a draft that has not paid must have been saved for it to be tried again, in its price."""
_HELD = 16
"""Rounds that the choice of a plain one stands for at most: to choose takes some hundredths of a short pass."""
_LATE = 48
"""Measurements of costs that may wait: those of 16 rounds with drafts."""
_LEAST_LOSS = 0.1
"""Price of a plain round that is run for comparison, in plain rounds, where little seems to be lost by it."""


class GammaController:
    """The controller of one engine. In each round: `choose`, draft, `trim`, verify, `observe`.

    Where a pass is padded to its longest draft a round has one draft length, good for all rows together, and every row
    uses as much of it as it can; else each row has its own. `rows` is always the size of the batch, rows with a γ of
    their own included.
    """

    def __init__(self, latency: LatencyModel, limit: int = LIMIT) -> None:
        self._latency = latency
        self._limit = min(limit, LIMIT)
        self._priors: dict[tuple[str, bool], dict[int, Prior]] = {}
        """By drafter, and whether rows are sampled: the same draft is accepted more often where they are not."""
        self._calibrations: dict[tuple[str, bool], Calibration | None] = {}
        self._worths = Worths()
        self._speedup = 1.0
        """λ: tokens per row and plain round of time, of late."""
        self._saved = _MOST_SAVED
        """Plain rounds that may be lost on learning something."""
        self._round = 1.0
        """Cost of the round under way."""
        self._drafted = False
        """Whether a draft was verified since the last plain round."""
        self._choice: tuple[list[object], list[int]] | None = None
        """What was chosen, for which rows and rooms."""
        self._hold = 0.0
        """Plain rounds for which it still stands."""
        self._longest_hold = 1.0
        """Plain rounds that a choice may stand for: the longer ago a token was accepted, the more."""
        self._next = 0.0
        """Plain rounds until enough is saved for the next trial that was thought of."""
        self._known: tuple[int, RoundCosts] | None = None
        """Costs of one batch size, and how many measurements they are from."""

    def acceptance(
        self,
        drafter: str,
        buckets: Sequence[int] = (),
        later: Collection[int] = (),
        offers: Offers | None = None,
        expected: Mapping[int, float] = MappingProxyType({}),
        *,
        growing: bool = False,
        sampled: bool = False,
    ) -> AcceptanceModel:
        """Start a row.

        Args:
            drafter: by name.
            buckets: the grades of confidence that it gives, if it gives any.
            later: those of tokens that it offers beside a likelier one.
            offers: what it will offer this row, if it knows.
            expected: the acceptance rate that tokens of a bucket are first thought to have.
            growing: whether it decides while it drafts, by a `budget`.
            sampled: whether the row is not greedy.
        """
        kind = (drafter, sampled)
        if kind not in self._priors:
            keys = buckets or range(POSITIONS)
            bases = dict.fromkeys(later, LOW) | {key: around(rate) for key, rate in expected.items()}
            self._priors[kind] = {key: Prior(bases.get(key, EVEN)) for key in keys}
            self._calibrations[kind] = Calibration() if expected else None
        return AcceptanceModel(
            drafter,
            self._priors[kind],
            self._calibrations[kind],
            not buckets,
            offers,
            growing=growing,
            sampled=sampled,
        )

    def budget(self, acceptance: AcceptanceModel, rows: int, growing: int = 1) -> Budget:
        """What a row's growing draft may cost, of so many that grow. In plain rounds of time a token is worth 1 / λ."""
        costs, several = self._costs(rows), growing if self._latency.ragged else rows
        price, size = max(1.0, self._speedup) * rows / several, growing if self._latency.ragged else 1
        passes = [price * each for each in costs.verifying_each(size)]
        return Budget(passes, price * costs.further_step(acceptance.drafter), acceptance.rate)

    def choose(self, acceptances: Sequence[AcceptanceModel], rooms: Sequence[int], rows: int) -> list[int]:
        """γ to ask for, per row; 0 for a plain round.

        Args:
            acceptances: of the rows whose γ is adaptive.
            rooms: the most that each of them can use.
            rows: size of the batch.
        """
        asked_for = [rows, *acceptances, *rooms]
        self._round = 1.0
        if self._choice is not None and self._choice[0] == asked_for and self._hold > 0:
            return list(self._choice[1])
        self._choice, self._next, saved = None, float(_HELD), self._saved
        gammas = self._choose(acceptances, rooms, rows)
        if saved == self._saved:  # else it is a trial, of one round
            self._choice, self._hold = (asked_for, gammas), min(self._longest_hold, self._next)
            self._longest_hold = min(2 * self._longest_hold, _HELD)
        return list(gammas)

    def _choose(self, acceptances: Sequence[AcceptanceModel], rooms: Sequence[int], rows: int) -> list[int]:
        gammas = [0] * len(acceptances)
        costs = self._costs(rows)
        growing = [i for i, f in enumerate(acceptances) if f.growing and rooms[i]]
        if growing and self._pays_to_grow([acceptances[i] for i in growing], costs):
            for i in growing:
                gammas[i] = rooms[i]
        for drafter in dict.fromkeys(f.drafter for f in acceptances if not f.growing):
            mine = [i for i, f in enumerate(acceptances) if f.drafter == drafter and not f.growing]
            those, room = [acceptances[i] for i in mine], [min(rooms[i], self._limit) for i in mine]
            asked, speedup = self._longest(those, room, costs)
            step, final, ones = costs.step(drafter), those[0].by_position, [min(1, each) for each in room]
            probe = step + costs.verifying(costs.size(ones))
            if not any(asked) and any(room) and self._afford(probe, probe if final else step):
                asked = ones
            elif any(asked) and final and self._compare(costs, costs.size(asked), speedup):
                asked = [0] * len(mine)
            for i, gamma in zip(mine, asked, strict=True):
                gammas[i] = gamma
        return gammas

    def _pays_to_grow(self, acceptances: Sequence[AcceptanceModel], costs: RoundCosts) -> bool:
        """Whether growing drafts have paid of late; now and then one is tried where they have not."""
        step, ones = costs.step(acceptances[0].drafter), [1] * len(acceptances)
        price = self._speedup * costs.rows / len(ones) * (step + costs.verifying(costs.size(ones)))
        if sum(self._worths.of(acceptance, costs.rows, price) for acceptance in acceptances) > 0:
            # Where nothing has been drafted since the last plain round there is nothing new to compare.
            return not (self._drafted and self._compare(costs, 1, self._speedup))
        # One measurement that was held up must not keep it from ever being made again.
        price = min(step, 1.0)
        return self._afford(_TRIAL * price, price)

    def _longest(
        self, acceptances: Sequence[AcceptanceModel], rooms: Sequence[int], costs: RoundCosts
    ) -> tuple[list[int], float]:
        """The γ to ask one drafter for, per row, and the speedup to be expected of it."""
        step = costs.step(acceptances[0].drafter)
        if any(acceptance.offers is None for acceptance in acceptances):
            chances = [acceptance.best_case(room) for acceptance, room in zip(acceptances, rooms, strict=True)]
            shared = SharedPass(chances, ragged=costs.ragged)
            best, speedup, _ = self._best(shared, costs, step=step)
            return [min(count, room) for count, room in zip(shared.counts(best), rooms, strict=True)], speedup
        longest, best_speedup, best_value = 0, 1.0, 0.0
        for gamma in range(1, min(max(rooms), LONGEST) + 1):
            chances = [each.offered(min(gamma, room)) for each, room in zip(acceptances, rooms, strict=True)]
            _, speedup, value = self._best(SharedPass(chances, ragged=costs.ragged), costs, drafted=step * gamma)
            if value <= best_value and longest:
                break
            if value > best_value:
                longest, best_speedup, best_value = gamma, speedup, value
        return [min(longest, room) for room in rooms], best_speedup

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
            acceptances: as for `choose`.
            asked: draft steps that were made for it.
            proposed: each token's bucket; anything where the drafter gives none.
            rows: size of the batch.
            trees: what follows what in each proposal, None for chains; nothing if all are.
        """
        costs, offers = (
            self._costs(rows),
            list(zip(acceptances, proposed, trees or [None] * len(proposed), strict=True)),
        )
        kept = [len(buckets) for buckets in proposed]
        open_to_change = [
            i
            for i, (acceptance, buckets, tree) in enumerate(offers)
            if buckets and not acceptance.by_position and (tree is None or not acceptance.growing)
        ]
        if open_to_change:
            chances = [
                acceptance.survival(buckets, tree)
                for acceptance, buckets, tree in map(offers.__getitem__, open_to_change)
            ]
            shared = SharedPass(chances, ragged=costs.ragged)
            settled = costs.size([count for i, count in enumerate(kept) if i not in open_to_change])
            for i, count in zip(open_to_change, self._verified(shared, settled, costs), strict=True):
                kept[i] = min(count, kept[i])
        self._note_costs(offers, asked, kept, costs)
        return kept

    def _verified(self, shared: SharedPass, settled: int, costs: RoundCosts) -> list[int]:
        """How many tokens to verify of each draft that is open to change, beside a size that is settled."""
        best, speedup, _ = self._best(shared, costs, settled=settled)
        if best == 0 and self._afford(costs.verifying(1), costs.verifying(1)):
            best = max(size for size, cost in enumerate(costs.passes) if cost <= costs.passes[1])
        elif best and not settled and self._compare(costs, best, speedup):
            best = 0
        return shared.counts(best)

    def _note_costs(
        self,
        offers: Sequence[tuple[AcceptanceModel, Sequence[int], Tree | None]],
        asked: Sequence[int],
        kept: Sequence[int],
        costs: RoundCosts,
    ) -> None:
        """Note what the round costs, and each growing draft's share of it."""
        steps: dict[str, int] = {}
        for (acceptance, _, _), count in zip(offers, asked, strict=True):
            steps[acceptance.drafter] = max(count, steps.get(acceptance.drafter, 0))
        drafting = {drafter: costs.drafting(drafter, count) for drafter, count in steps.items()}
        whole = costs.size(kept)
        verifying = costs.verifying(whole)
        self._round = 1 + sum(drafting.values()) + verifying
        drafted = sum(count > 0 for count in asked)
        for (acceptance, buckets, tree), count in zip(offers, asked, strict=True):
            if not acceptance.growing:
                continue
            acceptance.price = None
            if count and costs.ragged:
                share = verifying * len(buckets) / whole if tree else 0.0
                acceptance.price = self._speedup * costs.rows * (share + drafting[acceptance.drafter] / drafted)
            elif count:
                own = costs.verifying(len(buckets)) if tree else 0.0
                acceptance.price = self._speedup * (own + drafting[acceptance.drafter])

    def observe_plain(self, acceptances: Sequence[AcceptanceModel]) -> None:
        """A round that nobody drafted for has passed."""
        for acceptance in acceptances:
            acceptance.skip()
        self._drafted = False
        self._hold -= 1
        self._note_speed(1.0)

    def observe(self, acceptances: Sequence[AcceptanceModel], judged: Sequence[VerifiedDraft]) -> None:
        """Learn from the round: what was verified of each row's draft."""
        if not acceptances:
            return
        for acceptance, each in zip(acceptances, judged, strict=True):
            acceptance.observe(each)
            self._worths.learn(acceptance, each.accepted)
        self._drafted = any(each.buckets for each in judged)
        self._hold = 0.0 if self._drafted else self._hold - 1
        if any(each.accepted for each in judged):
            self._longest_hold = 1.0
        self._note_speed(1 + sum(each.accepted for each in judged) / len(judged))

    def _note_speed(self, tokens: float) -> None:
        """A round has given so many tokens per row."""
        self._speedup += _MEMORY * (tokens / self._round - self._speedup)
        # A probe that succeeds earns the next one: only what is lost in the end counts as lost.
        self._saved = min(_MOST_SAVED, self._saved + _PROBE * self._round + max(0.0, tokens - self._round))

    def _best(
        self, shared: SharedPass, costs: RoundCosts, *, settled: int = 0, drafted: float = 0.0, step: float = 0.0
    ) -> tuple[int, float, float]:
        """What of a shared pass maximises tokens − λ·time, the speedup to be expected of it, and that maximum.

        Args:
            shared: what may be verified.
            costs: of this batch.
            settled: size of other drafts of the batch, which are verified in any case.
            drafted: time of drafting if anything is verified.
            step: time of drafting for one more token of the longest row.
        """
        price, before = max(1.0, self._speedup) * costs.rows, costs.verifying(settled)
        least, beside = (0, settled) if costs.ragged else (settled, 0)
        best, best_value, tokens, speedup = least, sum(shared.gains[:least]), 0.0, 1.0
        if sum(shared.gains) - price * (costs.verifying(beside + least + 1) - before + drafted + step) <= best_value:
            return best, speedup, best_value  # not even if all of them cost what the first one does
        for n, (gain, depth) in enumerate(zip(shared.gains, shared.depths, strict=True), 1):
            tokens += gain
            if n <= least:
                continue
            time = costs.verifying(beside + n) - before + drafted + step * depth
            value = tokens - price * time
            if value > best_value:
                best, best_value, speedup = n, value, (1 + tokens / costs.rows) / (1 + before + time)
        return best, speedup, best_value

    def _compare(self, costs: RoundCosts, size: int, speedup: float) -> bool:
        """Whether to run a plain round instead, because the speedup is within the error of the cost table.

        Without this an engine that always drafts would never learn that plain rounds are faster.
        """
        if not costs.in_doubt(size, speedup):
            return False
        lost = max(_LEAST_LOSS, speedup - 1)
        return self._afford(lost, lost)

    def _afford(self, price: float, now: float) -> bool:
        """Whether so much has been saved; if so, `now` of it is spent at once."""
        if self._saved < price:
            self._next = min(self._next, (price - self._saved) / _PROBE)
            return False
        self._saved -= now
        return True

    def _costs(self, rows: int) -> RoundCosts:
        """Costs of a batch, looked at anew when a good deal more is known."""
        changes = self._latency.changes
        if self._known is None or self._known[1].rows != rows or changes > self._known[0] + min(changes // 32, _LATE):
            self._known = changes, RoundCosts(self._latency, rows, self._limit)
        return self._known[1]
