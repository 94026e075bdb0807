"""Adaptive γ: how many tokens to draft and how many of them to verify, for the most tokens per second.

The engine learns what rounds cost (`cost_model`) and how likely drafted tokens are to be accepted
(`acceptance_model`). Leviathan et al. 2023 maximise the expected tokens of a round, (1 − α^(γ+1)) / (1 − α), over its
cost, γc + 1 (Theorem 3.8). Here α differs from token to token, so the expected tokens are 1 + Σᵢ P(token i is
accepted), for trees too; and costs are measured. Rounds differ, so what counts is Σ tokens / Σ time. That is maximised
by maximising tokens − λ·time in each round, λ being the resulting speed (Dinkelbach 1967).

The unit of time is the plain round (γ = 0) of the same batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate, zip_longest
from math import inf, log
from types import MappingProxyType
from typing import NamedTuple

from specchat.engine.decoding.gamma.acceptance_model import AcceptanceModel, Experience, VerifiedDraft
from specchat.engine.decoding.gamma.budget import Budget
from specchat.engine.decoding.gamma.cost_model import CostModel, RoundCosts
from specchat.engine.decoding.proposal import Offers
from specchat.engine.decoding.tree import LONGEST, Tree
from specchat.engine.request import MAX_GAMMA

_SPEED = 1 / 16
"""Weight of a round in λ."""
_EXPLORATION = 0.01
"""Share of the time that may be lost on exploration."""
_MOST_SAVED = 1.5
"""Time for exploration that can be saved up; also what is there at the start."""
_MIN_LOSS = 0.1
"""What a plain round costs at least as exploration, where drafts gain little."""
_GROWING_RESERVE = 1.5
"""Multiple of the price of a growing draft that must be saved to try one: its size is known only afterwards."""
_GAIN = 1 / 12
"""Weight of a round in the gain of growing drafts."""
_FIRST_GAIN = 0.35
"""Accepted tokens that a growing draft of one step is first expected to have."""


class GammaController:
    """The controller of one engine. In each round: `choose`, draft, `trim`, verify, `observe`.

    Where passes are padded, a token more for one row is free for the others; where they are ragged, each row has its
    own length. `rows` is always the size of the batch, including rows with a fixed γ.
    """

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        self._experience: dict[tuple[str, bool], Experience] = {}
        """By drafter, and whether rows are sampled: then drafts are accepted less often."""
        self._speed = 1.0
        """λ: tokens per row and plain round of time, exponential average."""
        self._saved = _MOST_SAVED
        """Time for exploration."""
        self._round = 1.0
        """Cost of the current round."""
        self._drafted = False
        """Whether a draft was verified since the last plain round."""
        self._rows = 1
        """Size of its batch."""

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
        """Acceptance model of a new row; the arguments describe its drafter (`engine.decoding.drafter`)."""
        if (drafter, sampled) not in self._experience:
            self._experience[drafter, sampled] = Experience(buckets, later, expected)
        return AcceptanceModel(drafter, self._experience[drafter, sampled], offers, growing=growing)

    def budget(self, acceptance: AcceptanceModel, rows: int, growing: int = 1) -> Budget:
        """Prices for a row's growing draft, in tokens, where `growing` rows of the batch grow one."""
        costs = self._costs.of_batch(rows)
        sharing, tokens = (growing, growing) if costs.ragged else (rows, 1)
        price = max(1.0, self._speed) * rows / sharing
        passes = [price * costs.verifying(tokens * count) for count in range(MAX_GAMMA + 1)]
        further = costs.drafting(acceptance.drafter, 2) - costs.drafting(acceptance.drafter, 1)
        return Budget(passes, price * further, acceptance.rate)

    def choose(self, acceptances: Sequence[AcceptanceModel], rooms: Sequence[int], rows: int) -> list[int]:
        """γ to draft for, per row; 0 for no draft.

        Args:
            acceptances: of the rows with adaptive γ.
            rooms: largest γ of each.
            rows: size of the batch.
        """
        costs, gammas = self._costs.of_batch(rows), [0] * len(acceptances)
        self._round, self._rows = 1.0, rows
        groups: dict[tuple[str, bool], list[int]] = {}
        for i, acceptance in enumerate(acceptances):
            if rooms[i]:
                groups.setdefault((acceptance.drafter, acceptance.growing), []).append(i)
        for group in groups.values():
            models, most = [acceptances[i] for i in group], [min(rooms[i], MAX_GAMMA) for i in group]
            for i, gamma in zip(group, self._choose(models, most, costs), strict=True):
                gammas[i] = gamma
        return gammas

    def _choose(self, models: Sequence[AcceptanceModel], rooms: Sequence[int], costs: RoundCosts) -> list[int]:
        """γ for the rows of one drafter."""
        first, ones = models[0], [1] * len(models)
        step, pass_ = costs.drafting(first.drafter, 1), costs.verifying(costs.size(ones))
        if first.growing:
            first_gain = _FIRST_GAIN - self._speed * costs.rows / len(models) * (step + pass_)
            pays = first.experience.gain.setdefault(costs.rows, first_gain) > 0
            gammas, speedup = (list(rooms), self._speed) if pays else ([0] * len(models), 1.0)
        else:
            gammas, speedup = self._longest(models, rooms, costs)
        if any(gammas):
            # What graded drafts are worth is known once they are drafted: `trim` compares those with plain rounds.
            compared = (first.growing or not first.graded) and self._explore_plain(
                costs, 1 if first.growing else costs.size(gammas), speedup
            )
            return [0] * len(models) if compared else gammas
        if first.growing:
            # One delayed measurement must not prevent all later ones.
            price = min(step, 1.0)
            return list(rooms) if self._afford(price, _GROWING_RESERVE) else gammas
        return ones if self._afford(step if first.graded else step + pass_) else gammas

    def _longest(
        self, models: Sequence[AcceptanceModel], rooms: Sequence[int], costs: RoundCosts
    ) -> tuple[list[int], float]:
        """The γ of most value for one drafter's rows, and the speedup expected of it."""
        drafter, best, longest = models[0].drafter, _Choice(0, 0.0, 1.0), 0
        if any(model.offers is None for model in models):
            tokens = _in_order([model.best_case(room) for model, room in zip(models, rooms, strict=True)], costs)
            best = self._best(tokens, costs, lambda depth: costs.drafting(drafter, depth))
            counts = _lengths(tokens, best.size, len(models))
            return [min(count, room) for count, room in zip(counts, rooms, strict=True)], best.speedup
        for gamma in range(1, min(max(rooms), LONGEST) + 1):
            offered = [model.offered(min(gamma, room)) for model, room in zip(models, rooms, strict=True)]
            drafting = costs.drafting(drafter, gamma)
            choice = self._best(_in_order(offered, costs), costs, lambda _, drafting=drafting: drafting)
            if choice.value > best.value:
                best, longest = choice, gamma
        return [min(longest, room) for room in rooms], best.speedup

    def trim(
        self,
        acceptances: Sequence[AcceptanceModel],
        steps: Sequence[int],
        proposed: Sequence[Sequence[int]],
        rows: int,
        trees: Sequence[Tree | None] = (),
    ) -> list[int]:
        """How many of the proposed tokens to verify, per row, from the first one on.

        Drafts without buckets stay whole: they tell nothing that `choose` did not know. So do trees that have grown.

        Args:
            acceptances: as for `choose`.
            steps: draft steps made for each row.
            proposed: each token's bucket; anything if the drafter has none.
            rows: size of the batch.
            trees: of the proposals, None for chains; empty if all are chains.
        """
        costs, shapes = self._costs.of_batch(rows), trees or [None] * len(proposed)
        kept = [len(buckets) for buckets in proposed]
        trimmed = [
            i
            for i, (model, tree) in enumerate(zip(acceptances, shapes, strict=True))
            if kept[i] and model.graded and (tree is None or not model.growing)
        ]
        if trimmed:
            tokens = _in_order([acceptances[i].survival(proposed[i], shapes[i]) for i in trimmed], costs)
            settled = costs.size([count for i, count in enumerate(kept) if i not in trimmed])
            best = self._best(tokens, costs, lambda _: 0.0, settled)
            size = best.size
            if not size and self._afford(costs.verifying(1)):
                size = max(n for n in range(1, MAX_GAMMA + 1) if costs.verifying(n) <= costs.verifying(1))
            elif size and not settled and self._explore_plain(costs, size, best.speedup):
                size = 0
            for i, count in zip(trimmed, _lengths(tokens, size, len(trimmed)), strict=True):
                kept[i] = min(count, kept[i])
        drafting = {model.drafter: costs.drafting(model.drafter, max(steps)) for model in acceptances}
        self._round = 1 + sum(drafting.values()) + costs.verifying(costs.size(kept))
        grown = [i for i, model in enumerate(acceptances) if model.growing and steps[i]]
        if grown:
            drafters = {acceptances[i].drafter for i in grown}
            size = costs.size([kept[i] if shapes[i] else 0 for i in grown])
            time = costs.verifying(size) + sum(drafting[drafter] for drafter in drafters)
            for i in grown:
                acceptances[i].price = self._speed * rows * time / len(grown)
        return kept

    def observe(self, acceptances: Sequence[AcceptanceModel], verified: Sequence[VerifiedDraft] = ()) -> None:
        """Learn from a round: what was verified of each row's draft; empty for a round without drafts."""
        if not acceptances:
            return
        for model, draft in zip_longest(acceptances, verified):
            model.observe(draft)
            gain = model.experience.gain
            if model.price is not None and draft is not None and self._rows in gain:
                # A delayed measurement must not outweigh all others.
                gain[self._rows] += _GAIN * (max(draft.accepted - model.price, -1.0) - gain[self._rows])
                model.price = None
        self._drafted = any(draft.buckets for draft in verified)
        accepted = sum(draft.accepted for draft in verified)
        tokens = 1 + accepted / len(acceptances)
        self._speed += _SPEED * (tokens / self._round - self._speed)
        # A trial that succeeds pays for the next one.
        earned = max(0.0, tokens - self._round)
        self._saved = min(_MOST_SAVED, self._saved + _EXPLORATION * self._round + earned)

    def _best(
        self, tokens: Sequence[_Token], costs: RoundCosts, drafting: Callable[[int], float], settled: int = 0
    ) -> _Choice:
        """How many tokens maximise tokens − λ·time.

        Args:
            tokens: that may be verified, in order.
            costs: of this batch.
            drafting: time of drafting, by the depth of the drafts.
            settled: size of other drafts in the batch, which are verified in any case.
        """
        price, before = max(1.0, self._speed) * costs.rows, costs.verifying(settled)
        best, gained = _Choice(0, 0.0, 1.0), 0.0
        for size, token in enumerate(tokens, 1):
            gained += token.gain
            whole = settled + size if costs.ragged else max(settled, size)
            time = costs.verifying(whole) - before + drafting(token.depth)
            if gained - price * time > best.value:
                best = _Choice(size, gained - price * time, (1 + gained / costs.rows) / (1 + before + time))
        return best

    def _explore_plain(self, costs: RoundCosts, size: int, speedup: float) -> bool:
        """Whether to run a plain round, since drafts of a size seem faster only within the error of the cost model.

        Otherwise an engine that always drafts would never learn that plain rounds are faster.
        """
        doubt = costs.doubt(size)
        if not self._drafted or log(max(1.0, speedup)) > doubt:
            return False
        return doubt == inf or self._afford(max(_MIN_LOSS, speedup - 1))

    def _afford(self, price: float, reserve: float = 1.0) -> bool:
        """Whether `reserve` times the price has been saved; if so, the price is spent."""
        affordable = self._saved >= price * reserve
        self._saved -= price * affordable
        return affordable


class _Token(NamedTuple):
    """The next token of a growing pass: of one row, or where passes are padded of all rows."""

    gain: float
    """Expected accepted tokens."""
    depth: int
    """Tokens of the longest row so far."""
    row: int | None = None


class _Choice(NamedTuple):
    """A number of tokens to verify, its value in tokens beyond their price, and the expected speedup."""

    size: int
    value: float
    speedup: float


def _in_order(chances: Sequence[Sequence[float]], costs: RoundCosts) -> list[_Token]:
    """The drafts of a batch in the order in which a pass is best filled with their tokens.

    Args:
        chances: per row, the probability that each token is accepted.
        costs: of the batch.
    """
    if not costs.ragged or len(chances) == 1:
        columns = zip_longest(*chances, fillvalue=0.0)
        return [_Token(sum(column), depth) for depth, column in enumerate(columns, 1)]
    # The likeliest first, but each row in its own order: in a tree, a later token may be likelier.
    bounds = [accumulate(row, min) for row in chances]
    found = sorted((-bound, i, place) for i, row in enumerate(bounds) for place, bound in enumerate(row))
    depths = accumulate((place + 1 for _, _, place in found), max)
    return [_Token(chances[i][place], depth, i) for (_, i, place), depth in zip(found, depths, strict=True)]


def _lengths(tokens: Sequence[_Token], size: int, rows: int) -> list[int]:
    """Tokens of each row in a pass of the first `size`."""
    taken = [token.row for token in tokens[:size]]
    return [taken.count(row) + taken.count(None) for row in range(rows)]
