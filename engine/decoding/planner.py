"""The planning side of a round: what rows may draft, what is worth its verification, and what was learnt from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.constrained import ConstrainedDrafter
from specchat.engine.decoding.draft import Budget, Draft, RowOrder
from specchat.engine.decoding.drafter import Drafter, RowDrafters
from specchat.engine.decoding.gamma.acceptance_model import AcceptanceModel, Experiences, VerifiedDraft
from specchat.engine.decoding.gamma.controller import GammaController
from specchat.engine.decoding.gamma.cost_model import CostModel
from specchat.engine.decoding.round import RoundOutcome
from specchat.engine.decoding.tree_growth import fixed_budget
from specchat.engine.errors import EngineError
from specchat.engine.registry import unknown_drafter
from specchat.engine.request import AUTO, NO_DRAFTER
from specchat.engine.sequence.sequence import SequenceState

_LEARNT_AT_ONCE = 4
"""Rounds that are learnt from at once. After each short pass, the code that learns would have to be read from memory
again: to learn from four rounds takes little longer than from one."""
_LONGEST_CALL_S = 0.024
"""Time of plain rounds up to which they are run in one call: less than a frame on the screen."""
_UNSURE = 0.25
"""Acceptance rate of tokens that take no draft step after most matches. At a batch size where such tokens do not pay,
drafters are not asked for them: that would take longer than it could gain."""


class _RoundResult(NamedTuple):
    """Result of a round that has not been learnt from."""

    requests: list[str]
    """The requests of its adaptive rows."""
    verified: list[VerifiedDraft]
    """Their verified drafts; empty for a round without drafts."""
    rows: int
    """B"""
    width: int
    """Width of the pass."""
    steps: int
    """Draft steps."""
    drafter: str | None
    """Name of the drafter whose steps took `draft_s`; None if that is not known."""
    draft_s: float
    verify_s: float


class Planner:
    """Orders drafts for the rows of each round, as long as the controller of γ says.

    Args:
        drafters: by name.
        target: whose passes verify.
        on_fault: called with a row whose drafter failed; the row continues without drafts.
        experiences: with the drafters, of earlier sessions.
    """

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        target: Backend,
        on_fault: Callable[[SequenceState, Exception], None],
        experiences: Experiences | None = None,
    ) -> None:
        constrained = partial(ConstrainedDrafter, branches=target.capabilities.trees)
        self.drafters = RowDrafters(drafters, on_fault, target.vocabulary, constrained)
        self._target = target
        self._on_fault = on_fault
        self._costs = CostModel(target.width, ragged=target.capabilities.ragged)
        self._controller = GammaController(self._costs, experiences)
        self._acceptances: dict[str, AcceptanceModel] = {}
        self._unlearnt: list[_RoundResult] = []
        self._trial = False
        """Whether the drafts of this round are a trial."""

    def learn_costs(self, passes: Sequence[tuple[int, float]], steps: Mapping[str, float]) -> None:
        """Costs that were measured before the first round.

        Args:
            passes: widths of target passes over one row, and their seconds.
            steps: seconds of a draft step for one row, by drafter.
        """
        for width, seconds in passes:
            self._costs.observe_pass(1, width, seconds)
        for name, seconds in steps.items():
            self._costs.observe_draft(name, 1, 1, seconds)

    def resolve(self, name: str, gamma: int | None) -> str:
        """The drafter that a request gets: the best one for auto, none where γ is 0.

        Raises:
            EngineError: there is none of that name.
        """
        if name != AUTO and name not in self.drafters.by_name:
            raise EngineError(unknown_drafter(name, (AUTO, *self.drafters.by_name)))
        if gamma == 0:
            return NO_DRAFTER
        return next(iter(self.drafters.by_name)) if name == AUTO else name

    def admit(self, row: SequenceState) -> None:
        """A row starts."""
        drafter = self.drafters.of(row)
        try:
            about = drafter.admit(row)
        except Exception as error:  # a drafter is a plug: whatever it raises, the target continues alone
            self._on_fault(row, error)
            return
        if about.known_states is not None:
            row.cached = min(row.cached, about.known_states)
        if row.adaptive:
            self._acceptances[row.request.request_id] = self._controller.acceptance(
                drafter.name, drafter.profile, about, row.sampling
            )
        if states := self._target.cache.states:  # the drafter may know less of the text
            row.cached = states.reusable(row.slot, row.cached)

    def release(self, row: SequenceState) -> None:
        """A row has ended."""
        self._learn_pending()
        try:
            self.drafters.of(row).release(row)
        except Exception as error:  # a drafter is a plug: whatever it raises, the target continues alone
            self._on_fault(row, error)
        self._forget(row)

    def _forget(self, row: SequenceState) -> None:
        self._acceptances.pop(row.request.request_id, None)

    def give_up(self, row: SequenceState) -> None:
        """A row continues without drafts, as its drafter has failed."""
        self._learn_pending()
        with suppress(Exception):  # it may not know the row
            self.drafters.of(row).release(row)
        self._forget(row)
        row.drafter = NO_DRAFTER
        self.admit(row)

    def change(self, row: SequenceState, drafter: str, gamma: int | None) -> None:
        """A row drafts otherwise from its next round on."""
        self.release(row)
        row.request = replace(row.request, drafter=drafter, gamma=gamma)
        row.drafter = self.resolve(drafter, gamma)
        self.admit(row)

    def orders(self, rows: Sequence[SequenceState]) -> list[RowOrder]:
        """What each row may draft in the next round."""
        for row in rows:
            row.measure_room(self._target.limit(row))
        self._trial = False
        adaptive = [row for row in rows if row.adaptive]
        if not adaptive:
            return [RowOrder(row, row.room, self._fixed_budget(row, row.room)) for row in rows]
        acceptances = {row.slot: self._acceptances[row.request.request_id] for row in adaptive}
        stepping = [row for row in adaptive if not self.drafters.of(row).profile.stepless]
        gammas = dict.fromkeys(acceptances, 0)
        chosen = self._controller.choose(
            [acceptances[row.slot] for row in stepping], [row.room for row in stepping], len(rows)
        )
        self._trial = self._controller.tries
        gammas |= zip((row.slot for row in stepping), chosen, strict=True)
        budgets = self._budgets(adaptive, gammas, len(rows))
        paying = self._controller.least_rate(len(rows)) < _UNSURE
        orders = []
        for row in rows:
            gamma, budget = gammas.get(row.slot, row.room), budgets.get(row.slot)
            free = row.adaptive and self.drafters.of(row).profile.free and (paying or budget is not None)
            orders.append(RowOrder(row, gamma, budget or self._fixed_budget(row, gamma), free))
        return orders

    def _fixed_budget(self, row: SequenceState, gamma: int) -> Budget:
        """Prices for a row that may not use measured ones; a requested γ is drafted for whatever it costs."""
        stepless = self.drafters.of(row).profile.stepless
        return fixed_budget(gamma if row.request.gamma is not None or stepless else 0)

    def _budgets(self, adaptive: Sequence[SequenceState], gammas: Mapping[int, int], rows: int) -> dict[int, Budget]:
        """Prices by slot, for the adaptive rows whose drafters use them, where some draft can pay."""
        least, priced = self._controller.least_rate(rows), dict[int, AcceptanceModel]()
        for row in adaptive:
            acceptance = self._acceptances[row.request.request_id]
            uses = acceptance.growing or self.drafters.of(row).profile.free
            if uses and (gammas[row.slot] or acceptance.surest > least):
                priced[row.slot] = acceptance
        return {slot: self._controller.budget(each, rows, len(priced)) for slot, each in priced.items()}

    def max_rounds(self, rows: Sequence[SequenceState], allowed: Callable[[], bool]) -> int:
        """Rounds that may be run in one call, after `orders`: none needs a drafter on the host, or has a first token.

        Args:
            rows: of the round.
            allowed: whether there is room for them, asked if more than one is possible.
        """
        if self._trial or len({row.drafter for row in rows}) > 1 or not all(row.rounds for row in rows):
            return 1
        if self.drafters.of(rows[0]).recipe is None:
            return 1
        fitting = int(_LONGEST_CALL_S / self._costs.of_batch(len(rows)).plain_s)
        most = min(self._target.capabilities.rounds, fitting)
        return most if most > 1 and allowed() else 1

    def trim(self, orders: Sequence[RowOrder], drafts: Sequence[Draft], rows: int) -> list[Draft]:
        """The drafts without the tokens that are not worth their verification, in a batch of `rows` rows."""
        adaptive = [i for i, order in enumerate(orders) if order.row.adaptive and len(drafts[i].tree)]
        trimmed = list(drafts)
        if adaptive:
            some = [drafts[i] for i in adaptive]
            kept = self._controller.trim(
                [self._acceptances[orders[i].row.request.request_id] for i in adaptive],
                [_buckets(draft) for draft in some],
                rows,
                [draft.tree if draft.tree.branches or draft.q is not None else None for draft in some],
            )
            for i, count in zip(adaptive, kept, strict=True):
                trimmed[i] = drafts[i].first(count)
        return trimmed

    def learn(self, orders: Sequence[RowOrder], result: RoundOutcome) -> None:
        """Take in what a round has shown about drafters, costs and acceptance."""
        rows, drafts = [order.row for order in orders], result.drafts
        adaptive = [i for i, row in enumerate(rows) if row.adaptive]
        # A row's first draft may have read the whole prompt: that says nothing about a draft step.
        drafting = {order.row.drafter for order in orders if order.drafts}
        drafter = drafting.pop() if len(drafting) == 1 and all(row.rounds for row in rows) else None
        verified = []
        if result.steps or any(len(drafts[i].tree) for i in adaptive):
            verified = [
                VerifiedDraft(
                    _buckets(drafts[i]),
                    result.outcomes[i].accepted,
                    drafts[i].tree if drafts[i].tree.branches else None,
                    result.outcomes[i].path,
                    drafts[i].steps,
                )
                for i in adaptive
            ]
        lengths = [len(draft.tree) for draft in drafts]
        width = len(rows) + sum(lengths) if self._costs.ragged else 1 + max(lengths)
        requests = [rows[i].request.request_id for i in adaptive]
        self._unlearnt.append(
            _RoundResult(requests, verified, len(rows), width, result.steps, drafter, result.draft_s, result.verify_s)
        )
        if len(self._unlearnt) >= _LEARNT_AT_ONCE:
            self._learn_pending()
        for row, draft in zip(rows, drafts, strict=True):
            if draft.fault is not None and row.drafter != NO_DRAFTER:  # else it has failed since
                self._on_fault(row, draft.fault)

    def _learn_pending(self) -> None:
        """Learn from the rounds since the last time."""
        results, self._unlearnt = self._unlearnt, []
        for each in results:
            self._costs.observe_pass(each.rows, each.width, each.verify_s)
            draft_s = each.draft_s if each.drafter and each.steps else 0.0
            if each.drafter and each.steps:
                self._costs.observe_draft(each.drafter, each.rows, each.steps, each.draft_s)
            # A row whose drafter has failed since learns nothing more.
            known = [k for k, request in enumerate(each.requests) if request in self._acceptances]
            if known:
                acceptances = [self._acceptances[each.requests[k]] for k in known]
                verified = [each.verified[k] for k in known] if each.verified else ()
                self._controller.observe(acceptances, verified, each.rows, draft_s)

    def learn_plain(self, rows: int, seconds: float) -> None:
        """Observe the time of a plain pass that was run for comparison between rounds of `rows` rows."""
        self._costs.observe_pass(rows, self._costs.plain_width(rows), seconds)

    def learn_rest(self, result: RoundOutcome, rest_s: float) -> None:
        """Observe the time of a round besides draft steps and verification."""
        seconds = rest_s if result.steps else result.draft_s + rest_s
        self._costs.observe_rest(len(result.drafts), seconds, drafted=result.drafted)


def _buckets(draft: Draft) -> Sequence[int]:
    return draft.buckets or [0] * len(draft.tree)
