"""Adaptive γ: how many tokens to draft and how many of them to verify, for the most tokens per second.

The engine learns what rounds cost (`cost_model`) and how likely drafted tokens are to be accepted
(`acceptance_model`). Leviathan et al. 2023 maximise the expected tokens of a round, (1 − α^(γ+1)) / (1 − α), over its
cost, γc + 1 (Theorem 3.8). Here α differs from token to token, so the expected tokens are 1 + Σᵢ P(token i is
accepted), for trees too; and costs are measured. Rounds differ, so what counts is Σ tokens / Σ time. That is maximised
by maximising tokens − λ·time in each round, λ being the resulting speed (Dinkelbach 1967).

The unit of time is the plain round (γ = 0) of the same batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, zip_longest
from typing import NamedTuple

from specchat.engine.decoding.draft import Budget
from specchat.engine.decoding.drafter import DrafterProfile, RowProfile
from specchat.engine.decoding.gamma.acceptance_model import AcceptanceModel, Experiences, VerifiedDraft
from specchat.engine.decoding.gamma.cost_model import CostModel, RoundCosts
from specchat.engine.decoding.tree import LONGEST, Tree
from specchat.engine.request import MAX_GAMMA

_LENGTHS = (*range(1, LONGEST + 1), 12, MAX_GAMMA)
"""Draft lengths to choose from."""
_SPEED = 1 / 24
"""Weight of a round in λ."""
_EXPLORATION = 0.008
"""Share of the time that may be lost on trials of drafts that do not seem to pay."""
_MOST_SAVED = 0.75
"""Maximum of the time saved for trials, in plain rounds; also its initial value."""
_CATCHING_UP, _DEEPEST = 0.3, 2.0
"""A draft that takes so much longer than its steps, in plain rounds, has first read what its drafter had not, in a
trial after many rounds without drafts; the savings pay for that too. They fall no lower than minus the second."""
_GAIN = 1 / 24
"""Weight of a round in the gain of growing drafts."""
_FIRST_GAIN = 0.45
"""Accepted tokens that a growing draft of one step is first expected to have where verification is free."""


class GammaController:
    """The controller of one engine. In each round: `choose`, draft, `trim`, verify; then or a little later, `observe`.

    Where passes are padded, a token more for one row is free for the others; where they are ragged, each row has its
    own length. `rows` is always the size of the batch, including rows with a fixed γ.
    """

    def __init__(self, costs: CostModel, experiences: Experiences | None = None) -> None:
        self._costs = costs
        self._experiences = experiences or Experiences()
        self._speed = 1.0
        """λ: tokens per row and plain round of time, exponential average."""
        self._saved = _MOST_SAVED
        """Time for trials."""
        self._question, self._chosen = list[object](), list[int]()
        """For which rows and rooms γ was chosen, and the choice: it holds until something has been learnt."""
        self._budgets: dict[tuple[AcceptanceModel, int], Budget] = {}
        self._prices: dict[int, list[float]] = {}
        """Results of `budget`, and its prices of passes by growing rows, which hold as long."""
        self.tries = False
        """Whether the last choice is a trial, for one round."""

    def acceptance(
        self, drafter: str, profile: DrafterProfile, about: RowProfile, sampling: str = "greedy"
    ) -> AcceptanceModel:
        """Acceptance model of a new row; the arguments describe its drafter and kind of sampling."""
        return AcceptanceModel(drafter, self._experiences.of(drafter, sampling, profile), about)

    def budget(self, acceptance: AcceptanceModel, rows: int, growing: int = 1) -> Budget:
        """Prices for a row's growing draft, in tokens, where `growing` rows of the batch grow one."""
        known = self._budgets.get((acceptance, growing))
        if known is not None:
            return known
        costs = self._costs.of_batch(rows)
        sharing, tokens = (growing, growing) if costs.ragged else (rows, 1)
        price = max(1.0, self._speed) * rows / sharing
        if growing not in self._prices:
            self._prices[growing] = [price * costs.verifying(tokens * count) for count in range(MAX_GAMMA + 1)]
        step = costs.drafting(acceptance.drafter, 2) - costs.drafting(acceptance.drafter, 1)
        budget = Budget(self._prices[growing], price * step, acceptance.rates, repeat_rates=acceptance.repeat_rates)
        self._budgets[acceptance, growing] = budget
        return budget

    def choose(self, acceptances: Sequence[AcceptanceModel], rooms: Sequence[int], rows: int) -> list[int]:
        """γ to draft for, per row; 0 for no draft.

        Args:
            acceptances: of the rows with adaptive γ.
            rooms: largest γ of each.
            rows: size of the batch.
        """
        question, gammas = [rows, *acceptances, *rooms], [0] * len(acceptances)
        self.tries = False
        if self._costs.lacks_plain(rows):
            return gammas
        if question == self._question:
            return [*self._chosen]
        self._forget_choice()
        costs, saved = self._costs.of_batch(rows), self._saved
        for kind in dict.fromkeys((model.drafter, model.growing) for model in acceptances):
            group = [i for i, model in enumerate(acceptances) if rooms[i] and (model.drafter, model.growing) == kind]
            most = self._longest([acceptances[i] for i in group], [rooms[i] for i in group], costs) if group else 0
            for i in group:
                gammas[i] = min(most, rooms[i])
        self.tries = self._saved != saved
        if not self.tries:
            self._question, self._chosen = question, [*gammas]
        return gammas

    def _forget_choice(self) -> None:
        self._question = []
        self._budgets.clear()
        self._prices.clear()

    def least_rate(self, rows: int) -> float:
        """The acceptance rate from which verifying tokens pays if they take no draft step."""
        costs = self._costs.of_batch(rows)
        return max(1.0, self._speed) * rows * min(costs.verifying(1), costs.verifying(4) / 4)

    def _longest(self, models: Sequence[AcceptanceModel], rooms: Sequence[int], costs: RoundCosts) -> int:
        """The γ of most value for one drafter's rows."""
        first, best, longest = models[0], 0.0, 0
        step = costs.drafting(first.drafter, 1)
        price = step + costs.verifying(costs.size([1] * len(models)))
        if first.growing:
            # Rates spread evenly over 0 to 1 exceed a token's price by (1 - price)² / 2 on average, or fall below it.
            share = max(0.0, 1 - self.least_rate(costs.rows)) ** 2
            usual = _FIRST_GAIN * share - max(1.0, self._speed) * costs.rows / len(models) * price
            longest = MAX_GAMMA if first.experience.gain.setdefault(costs.rows, usual) > 0 else 0
        else:
            for gamma in (MAX_GAMMA,) if first.one_step else _LENGTHS:
                if gamma > first.longest or (longest and gamma > max(rooms)):
                    break
                offered = [model.offered(min(gamma, room)) for model, room in zip(models, rooms, strict=True)]
                drafting = costs.drafting(first.drafter, 1 if first.one_step else gamma)
                value = self._best(_in_order(offered, costs), costs, drafting=drafting)[1]
                if value > best:
                    best, longest = value, gamma
                elif longest:
                    break
        if longest or not self._afford(min(step, 1.0), price):
            return longest
        return MAX_GAMMA if first.growing else 1

    def trim(
        self,
        acceptances: Sequence[AcceptanceModel],
        proposed: Sequence[Sequence[int]],
        rows: int,
        trees: Sequence[Tree | None] = (),
    ) -> list[int]:
        """Number of proposed tokens to verify, per row, from the first one on.

        Grown trees stay whole: what was drawn may not decide whether it is tested.

        Args:
            acceptances: as for `choose`.
            proposed: each token's bucket; 0 if the drafter has none.
            rows: size of the batch.
            trees: of the proposals, None for chains of certain tokens; empty if all are such chains.
        """
        costs, shapes = self._costs.of_batch(rows), trees or [None] * len(proposed)
        kept = [len(buckets) for buckets in proposed]
        whole = [i for i, model in enumerate(acceptances) if model.growing and shapes[i]]
        trimmed = [i for i, count in enumerate(kept) if count and i not in whole]
        if trimmed:
            tokens = _in_order([acceptances[i].survival(proposed[i], shapes[i]) for i in trimmed], costs)
            size, _ = self._best(tokens, costs, others=costs.size([kept[i] for i in whole]))
            if not size and self._afford(costs.verifying(1)):
                size = max(n for n in range(1, MAX_GAMMA + 1) if costs.verifying(n) <= costs.verifying(1))
            taken = [token.row for token in tokens[:size]]
            for place, i in enumerate(trimmed):
                kept[i] = min(kept[i], taken.count(place) + taken.count(None))
        return kept

    def observe(
        self,
        acceptances: Sequence[AcceptanceModel],
        verified: Sequence[VerifiedDraft] = (),
        rows: int = 1,
        draft_s: float = 0.0,
    ) -> None:
        """Learn from a round.

        Args:
            acceptances: as for `choose`.
            verified: what was verified of each row's draft; empty for a round without drafts.
            rows: size of the batch.
            draft_s: seconds that drafting took.
        """
        costs, tokens, spent, catching_up = self._costs.of_batch(rows), 1.0, 1.0, 0.0
        if verified:
            tokens += sum(draft.accepted for draft in verified) / len(verified)
            drafting, verifying = self._learn_gains(acceptances, verified, costs)
            spent += drafting + verifying
            catching_up = max(0.0, draft_s / costs.plain_s - drafting - _CATCHING_UP)
        for model, draft in zip_longest(acceptances, verified):
            model.observe(draft)
        self._speed += _SPEED * (tokens / spent - self._speed)
        # A trial that succeeds pays for later ones, by half: some succeed by chance.
        earned = max(0.0, tokens - spent) / 2
        saved = self._saved + _EXPLORATION * spent + earned - catching_up
        self._saved = min(max(saved, -_DEEPEST), _MOST_SAVED)
        self._forget_choice()

    def _learn_gains(
        self, acceptances: Sequence[AcceptanceModel], verified: Sequence[VerifiedDraft], costs: RoundCosts
    ) -> tuple[float, float]:
        """Learn what growing drafts were expected to gain; what drafting and verification have added to the round."""
        steps = max(draft.steps for draft in verified)
        drafting = {model.drafter: costs.drafting(model.drafter, steps) for model in acceptances}
        drawn = [pair for pair in zip(acceptances, verified, strict=True) if pair[0].growing and pair[1].steps]
        size = costs.size([len(draft.buckets) for _, draft in drawn])
        for model, draft in drawn:
            time = costs.verifying(size) + drafting[model.drafter]
            expected = sum(model.survival(draft.buckets, draft.tree))
            found = expected - self._speed * costs.rows * time / len(drawn)
            gain, found = model.experience.gain, max(found, -1.0)  # a delayed measurement must not outweigh all others
            before = gain.get(costs.rows, found)
            gain[costs.rows] = before + _GAIN * (found - before)
        return sum(drafting.values()), costs.verifying(costs.size([len(draft.buckets) for draft in verified]))

    def _best(
        self, tokens: Sequence[_Token], costs: RoundCosts, *, drafting: float = 0.0, others: int = 0
    ) -> tuple[int, float]:
        """Number of tokens that maximises tokens − λ·time, and that maximum.

        Args:
            tokens: that may be verified, in order.
            costs: of this batch.
            drafting: time of drafting.
            others: size of other drafts in the batch, which are verified in any case.
        """
        price = max(1.0, self._speed) * costs.rows
        gained, best, before = -price * drafting, (0, 0.0), costs.verifying(others)
        for size, token in enumerate(tokens, 1):
            gained += token.gain
            total = others + size if costs.ragged else max(others, size)
            value = gained - price * (costs.verifying(total) - before)
            if value > best[1]:
                best = size, value
        return best

    def _afford(self, price: float, reserve: float = 0.0) -> bool:
        """Whether the price and the reserve have been saved; if so, the price is spent."""
        affordable = self._saved >= max(price, reserve)
        self._saved -= price * affordable
        return affordable


class _Token(NamedTuple):
    """The next token of a pass that is being filled: of one row, or where passes are padded of all rows."""

    gain: float
    """Expected accepted tokens."""
    row: int | None = None


def _in_order(chances: Sequence[Sequence[float]], costs: RoundCosts) -> list[_Token]:
    """The drafts of a batch in the order in which a pass is best filled with their tokens.

    Args:
        chances: per row, the probability that each token is accepted.
        costs: of the batch.
    """
    if not costs.ragged or len(chances) == 1:
        return [_Token(sum(column)) for column in zip_longest(*chances, fillvalue=0.0)]
    # The likeliest first, but each row in its own order: in a tree, a later token may be likelier.
    bounds = [accumulate(row, min) for row in chances]
    found = sorted((-bound, i, place) for i, row in enumerate(bounds) for place, bound in enumerate(row))
    return [_Token(chances[i][place], i) for _, i, place in found]
