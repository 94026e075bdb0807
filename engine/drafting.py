"""The drafting side of a round: how long each row's draft is to be, who makes it, and what was learnt from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.adaptive import AdaptiveGamma
from engine.cached_model import CachedModel
from engine.costs import Costs
from engine.drafters.base import Draft, Drafter
from engine.drafters.proposal import Proposal, merge
from engine.errors import EngineError, unknown_drafter
from engine.forecast import Forecast, Judged
from engine.outcome import Outcome
from engine.request import AUTO
from engine.row import Row
from engine.to_device import to_device
from engine.tree import Tree


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be verified in a round, and how it came about."""

    proposal: Proposal
    gammas: list[int]
    """Draft length asked for, per row."""
    adaptive: list[int]
    """Rows (by index) whose γ is chosen by the controller."""
    buckets: list[list[int]]
    """How sure the drafter was of each token to be verified, per adaptive row."""
    drafter: str | None
    """The one that drafted; None if none or several did."""
    steps: int
    """Draft steps it took."""


class Drafting:
    """All drafters of an engine behind one door, with the controller of γ.

    Args:
        drafters: by name.
        target: whose passes verify.
        on_fault: called with a row whose drafter raised; the row goes on without drafts.
    """

    def __init__(
        self, drafters: Mapping[str, Drafter], target: CachedModel, on_fault: Callable[[Row, Exception], None]
    ) -> None:
        self.drafters = drafters
        self._context = target.context
        self._on_fault = on_fault
        self._costs = Costs(target.width)
        self._controller = AdaptiveGamma(self._costs)
        self._forecasts: dict[str, Forecast] = {}

    def named(self, name: str) -> str:
        """The drafter that a request asks for; the best one for auto.

        Raises:
            EngineError: there is none of that name.
        """
        if name == AUTO:
            return next(iter(self.drafters))
        if name in self.drafters:
            return name
        raise EngineError(unknown_drafter(name, self.drafters))

    def admit(self, row: Row) -> None:
        """A row starts."""
        drafter = self.drafters[row.drafter]
        drafter.admit(row)
        if row.adaptive:
            self._forecasts[row.request.request_id] = self._controller.forecast(
                drafter.name, drafter.buckets, drafter.later, drafter.offers(row)
            )

    def release(self, row: Row) -> None:
        """A row has ended."""
        self.drafters[row.drafter].release(row)
        self._forecasts.pop(row.request.request_id, None)

    def give_up(self, row: Row) -> None:
        """A row goes on without drafts."""
        self.release(row)
        row.drafter = "none"
        self.admit(row)

    def change(self, row: Row, drafter: str, gamma: int | None) -> None:
        """A row drafts otherwise from its next round on."""
        self.release(row)
        row.request = replace(row.request, drafter=drafter, gamma=gamma)
        row.drafter = "none" if gamma == 0 else drafter
        self.admit(row)

    def plan(self, rows: Sequence[Row], device: torch.device) -> Plan:
        """Draft for every row, as one batch on the device."""
        gammas = [row.draft_room(self._context, self.drafters[row.drafter].steady) for row in rows]
        adaptive = [i for i, row in enumerate(rows) if row.adaptive]
        forecasts = [self._forecasts[rows[i].request.request_id] for i in adaptive]
        if adaptive:
            chosen = self._controller.choose(forecasts, [gammas[i] for i in adaptive], len(rows))
            for i, gamma in zip(adaptive, chosen, strict=True):
                gammas[i] = gamma
        drafts = self._propose(rows, gammas)
        steps = _steps(drafts, gammas, len(rows))
        buckets: list[list[int]] = [[] for _ in adaptive]
        adaptive = [i for i in adaptive if rows[i].adaptive]  # a drafter may just have failed
        if adaptive:
            forecasts = [self._forecasts[rows[i].request.request_id] for i in adaptive]
            proposed, trees = _by_row(drafts, len(rows))
            kept = self._controller.trim(
                forecasts,
                [steps[i] for i in adaptive],
                [proposed[i] for i in adaptive],
                len(rows),
                [trees[i] for i in adaptive],
            )
            lengths = dict(zip(adaptive, kept, strict=True))
            drafts = [(mine, draft.shortened([lengths.get(i) for i in mine])) for mine, draft in drafts]
            buckets = [proposed[i][: lengths[i]] for i in adaptive]
        for mine, draft in drafts:  # a drafter may give more than it was asked for, where that costs nothing
            for k, i in enumerate(mine):
                gammas[i] = gammas[i] if draft.trees and draft.trees[k] else max(gammas[i], draft.lengths[k])
        names = {rows[mine[0]].drafter for mine, _ in drafts}
        return Plan(
            proposal=merge(drafts, len(rows), device),
            gammas=gammas,
            adaptive=adaptive,
            buckets=buckets,
            drafter=names.pop() if len(names) == 1 else None,
            steps=max(steps, default=0),
        )

    def learn(
        self,
        rows: Sequence[Row],
        plan: Plan,
        outcomes: Sequence[Outcome],
        draft_s: float,
        verify_s: float,
        rest_s: float,
    ) -> None:
        """What the round has shown about costs and acceptance. Times are seconds."""
        width = plan.proposal.tokens.shape[1] + 1
        # A row's first draft may have read the whole prompt: that says nothing about a draft step.
        drafter = None if any(row.rounds == 0 for row in rows) else plan.drafter
        self._costs.observe(len(rows), width, drafter, plan.steps, draft_s, verify_s, rest_s)
        if plan.adaptive:
            forecasts = [self._forecasts[rows[i].request.request_id] for i in plan.adaptive]
            trees = plan.proposal.trees or [None] * len(rows)
            judged = [
                Judged(buckets, outcomes[i].accepted, trees[i], outcomes[i].path)
                for buckets, i in zip(plan.buckets, plan.adaptive, strict=True)
            ]
            self._controller.observe(forecasts, judged)

    def lend(self, row: Row, source: int, length: int) -> int:
        """How many of a row's first `length` tokens, which another slot holds, may be copied from there."""
        return self.drafters[row.drafter].lend(row, source, length)

    def absorb(self, rows: Sequence[Row], tapped: Tensor | None) -> None:
        """The target has read tokens of these rows, from `Row.cached` on; what it hands out goes to who drafts."""
        if tapped is None:
            return
        for name in dict.fromkeys(row.drafter for row in rows):
            mine = [i for i, row in enumerate(rows) if row.drafter == name]
            part = tapped if len(mine) == len(rows) else tapped[to_device(mine, tapped.device)]
            self.drafters[name].absorb([rows[i] for i in mine], part)

    def observe(self, row: Row, emitted: Sequence[int]) -> None:
        """A round has added `emitted` to `row.tokens`."""
        self.drafters[row.drafter].observe(row, emitted)

    def _propose(self, rows: Sequence[Row], gammas: Sequence[int]) -> list[tuple[list[int], Draft]]:
        """Each drafter's draft, with the rows (by index) it is for."""
        drafts = []
        for name in dict.fromkeys(row.drafter for row in rows):
            always = self.drafters[name].always
            mine = [
                i for i, row in enumerate(rows) if row.drafter == name and (gammas[i] > 0 or (always and row.adaptive))
            ]
            if not mine:
                continue
            try:
                draft = self.drafters[name].propose([rows[i] for i in mine], [gammas[i] for i in mine])
            except Exception as error:  # a drafter is a plug: whatever it raises, the target goes on alone
                for i in mine:
                    self._on_fault(rows[i], error)
                continue
            drafts.append((mine, draft))
        return drafts


def _steps(drafts: Sequence[tuple[list[int], Draft]], gammas: Sequence[int], rows: int) -> list[int]:
    """The draft steps that were made for each row of the batch."""
    steps = [0] * rows
    for mine, draft in drafts:
        for i in mine:
            steps[i] = gammas[i] if draft.steps is None else draft.steps
    return steps


def _by_row(drafts: Sequence[tuple[list[int], Draft]], rows: int) -> tuple[list[list[int]], list[Tree | None]]:
    """Per row of the batch, the bucket of each drafted token, 0 where the drafter gives none; and what follows what."""
    buckets: list[list[int]] = [[] for _ in range(rows)]
    trees: list[Tree | None] = [None] * rows
    for mine, draft in drafts:
        for k, i in enumerate(mine):
            buckets[i] = [0] * draft.lengths[k] if draft.buckets is None else draft.buckets[k]
            trees[i] = draft.trees[k] if draft.trees else None
    return buckets, trees
