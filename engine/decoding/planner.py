"""The drafting side of a round: how long each row's draft is to be, who makes it, and what was learnt from it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

import torch

from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.drafter import Budget, Budgets, Drafter, RowProfile
from specchat.engine.decoding.gamma.acceptance_model import AcceptanceModel, VerifiedDraft
from specchat.engine.decoding.gamma.controller import GammaController
from specchat.engine.decoding.gamma.cost_model import CostModel
from specchat.engine.decoding.gamma.experiences import Experiences
from specchat.engine.decoding.outcome import Outcome
from specchat.engine.decoding.proposal import Draft, Proposal, Source, merge
from specchat.engine.decoding.round_plan import RoundPlan
from specchat.engine.decoding.row_drafters import RowDrafters
from specchat.engine.decoding.tree import Tree
from specchat.engine.errors import EngineError
from specchat.engine.registry import unknown_drafter
from specchat.engine.request import AUTO, NO_DRAFTER
from specchat.engine.sequence.sequence import SequenceState

_TOGETHER = 4
"""Rounds that are learnt from together. After each short pass, the code that learns would have to be read from memory
again: to learn from four rounds takes little longer than from one."""
_TOGETHER_S = 0.024
"""Time of plain rounds up to which they are run together: less than a frame on the screen."""
_UNSURE = 0.25
"""Acceptance rate of tokens that take no draft step after most matches. At a batch size where such tokens do not pay,
drafters are not asked for them: that would take longer than it could gain."""


class _Lesson(NamedTuple):
    """A round to be learnt from."""

    names: list[str]
    """The requests of its adaptive rows."""
    verified: list[VerifiedDraft]
    """Their verified drafts; empty for a round without drafts."""
    rows: int
    """B"""
    width: int
    """Of the pass."""
    steps: int
    """Draft steps."""
    drafter: str | None
    """Whose draft steps took `draft_s`; None if that is not known."""
    draft_s: float
    verify_s: float


class Planner:
    """Drafts for the rows of each round, as long as the controller of γ says.

    Args:
        drafters: by name.
        target: whose passes verify.
        on_fault: called with a row whose drafter raised; the row continues without drafts.
        experiences: with the drafters, of earlier sessions.
        ends: tokens that end a reply.
    """

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        target: Backend,
        on_fault: Callable[[SequenceState, Exception], None],
        experiences: Experiences | None = None,
        ends: Collection[int] = (),
    ) -> None:
        self._ends = ends
        self.drafters = RowDrafters(drafters, on_fault)
        self._target = target
        self._on_fault = on_fault
        self._costs = CostModel(target.width, ragged=target.capabilities.ragged)
        self._controller = GammaController(self._costs, experiences)
        self._acceptances: dict[str, AcceptanceModel] = {}
        self._profiles: dict[str, RowProfile] = {}
        self._lessons: list[_Lesson] = []
        self._tries = False
        """Whether the drafts of this round are a trial."""
        self._empty = cache(partial(merge, []))
        """Proposals of plain rounds by B and device: to make one takes a while next to a short pass."""

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

    def named(self, name: str, gamma: int | None) -> str:
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
        self._profiles[row.request.request_id] = about
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
        self._study()
        try:
            self.drafters.of(row).release(row)
        except Exception as error:  # a drafter is a plug: whatever it raises, the target continues alone
            self._on_fault(row, error)
        self._forget(row)

    def _forget(self, row: SequenceState) -> None:
        self._profiles.pop(row.request.request_id, None)
        self._acceptances.pop(row.request.request_id, None)

    def give_up(self, row: SequenceState) -> None:
        """A row continues without drafts, as its drafter has failed."""
        self._study()
        with suppress(Exception):  # it may not know the row
            self.drafters.of(row).release(row)
        self._forget(row)
        row.drafter = NO_DRAFTER
        self.admit(row)

    def change(self, row: SequenceState, drafter: str, gamma: int | None) -> None:
        """A row drafts otherwise from its next round on."""
        self.release(row)
        row.request = replace(row.request, drafter=drafter, gamma=gamma)
        row.drafter = self.named(drafter, gamma)
        self.admit(row)

    def plan(
        self, rows: Sequence[SequenceState], device: torch.device, together: Callable[[], bool] = lambda: False
    ) -> RoundPlan:
        """Draft for every row, as one batch on the device; `together` says whether it may be for several rounds."""
        for row in rows:
            row.measure_room(self._target.limit(row))
        gammas = [row.room for row in rows]
        adaptive = [i for i, row in enumerate(rows) if row.adaptive]
        least = self._controller.least_rate(len(rows)) if adaptive else 1.0
        sure = self._sure(rows, adaptive, least)
        adaptive = [i for i in adaptive if rows[i].adaptive]  # a drafter may have failed in that
        budgets = self._choose(rows, [i for i in adaptive if i not in sure], gammas, least)
        for i in sure:  # they need no draft step, and nothing has to be tried
            gammas[i] = 0
        # Drafts that grow on the kernels have budgets, and cost little to ask for.
        free = [i for i in adaptive if i in sure or least < _UNSURE or budgets[i]]
        drafts = self._propose(rows, gammas, budgets, free)
        steps, drafters = [0] * len(rows), {rows[mine[0]].drafter for mine, _ in drafts}
        for mine, draft in drafts:
            for i in mine:
                steps[i] = gammas[i] if draft.steps is None else draft.steps * (gammas[i] > 0)
        grows = any(draft.growing for _, draft in drafts)
        drafts = [(mine, draft) for mine, draft in drafts if grows or any(draft.lengths)]
        adaptive = [i for i in adaptive if rows[i].adaptive]  # or in this
        buckets: list[list[int]] = [[] for _ in adaptive]
        if adaptive and not grows and (drafts or any(steps)):
            drafts, buckets = self._trim(rows, adaptive, drafts)
        sources: list[Sequence[Source]] = [()] * len(rows)
        for mine, draft in drafts:
            at_zero = self.drafters.of(rows[mine[0]]).profile.proposes_at_zero
            for k, i in enumerate(mine):
                if at_zero:  # what it gives beyond γ is γ too
                    gammas[i] = max(gammas[i], draft.trees[k].depth)
                if draft.sources:
                    sources[i] = draft.sources[k]
        proposal = merge(drafts, len(rows), device) if drafts else self._empty(len(rows), device)
        proposal.rounds, proposal.ends = self._together(rows, proposal, together), self._ends
        return RoundPlan(
            proposal=proposal,
            gammas=gammas,
            adaptive=adaptive,
            drafted_buckets=buckets,
            drafter=drafters.pop() if len(drafters) == 1 else None,
            drafted_steps=steps,
            planned_sources=sources,
        )

    def _together(self, rows: Sequence[SequenceState], proposal: Proposal, allowed: Callable[[], bool]) -> int:
        """Rounds that may be run together: none of them needs a drafter's work on the host, or a first token."""
        drafter, same = self.drafters.of(rows[0]), len({row.drafter for row in rows}) == 1
        plain = not any(proposal.lengths) and (drafter.name == NO_DRAFTER or drafter.kernel_head is not None)
        if not (same and (plain or proposal.growing)) or not all(row.rounds for row in rows) or self._tries:
            return 1
        proposal.head = drafter.kernel_head
        fitting = int(_TOGETHER_S / self._costs.of_batch(len(rows)).plain_s)
        most = min(self._target.capabilities.rounds, fitting)
        return most if most > 1 and allowed() else 1

    def _sure(self, rows: Sequence[SequenceState], adaptive: Sequence[int], least: float) -> list[int]:
        """Adaptive rows whose next draft takes no draft step and is nearly always right, if `least` is exceeded so."""
        sure: list[int] = []
        for i in adaptive:
            name = rows[i].request.request_id
            try:
                acceptance = self._acceptances[name]
                bucket = self._profiles[name].sure_bucket() if acceptance.surest > least else None
                if bucket is not None and acceptance.rates[bucket] > least:
                    sure.append(i)
            except Exception as error:  # a drafter is a plug: whatever it raises, the target continues alone
                self._on_fault(rows[i], error)
        return sure

    def _choose(
        self, rows: Sequence[SequenceState], adaptive: Sequence[int], gammas: list[int], least: float
    ) -> list[Budget | None]:
        """Put the controller's choice into `gammas`; per row, what growing drafts may cost where some can pay."""
        budgets: list[Budget | None] = [None] * len(rows)
        self._tries = False
        if not adaptive:
            return budgets
        acceptances = {i: self._acceptances[rows[i].request.request_id] for i in adaptive}
        free = [i for i in adaptive if self._profiles[rows[i].request.request_id].free]
        asked = [i for i in adaptive if i not in free]
        chosen = self._controller.choose([acceptances[i] for i in asked], [gammas[i] for i in asked], len(rows))
        self._tries = self._controller.tries
        for i, gamma in zip((*asked, *free), (*chosen, *[0] * len(free)), strict=True):
            gammas[i] = gamma
        growing = [i for i in adaptive if acceptances[i].growing and (gammas[i] or acceptances[i].surest > least)]
        for i in growing:
            budgets[i] = self._controller.budget(acceptances[i], len(rows), len(growing))
        return budgets

    def _trim(
        self,
        rows: Sequence[SequenceState],
        adaptive: Sequence[int],
        drafts: Sequence[tuple[list[int], Draft]],
    ) -> tuple[list[tuple[list[int], Draft]], list[list[int]]]:
        """The drafts as far as they are worth their verification, and the buckets of their tokens per adaptive row."""
        acceptances = [self._acceptances[rows[i].request.request_id] for i in adaptive]
        proposed: list[list[int]] = [[] for _ in rows]
        trees: list[Tree | None] = [None] * len(rows)
        for mine, draft in drafts:
            for k, i in enumerate(mine):
                tree = draft.trees[k]
                proposed[i] = [0] * len(tree) if draft.buckets is None else draft.buckets[k]
                trees[i] = tree if tree.branches or (draft.drawn and draft.drawn[k]) else None
        kept = self._controller.trim(
            acceptances, [proposed[i] for i in adaptive], len(rows), [trees[i] for i in adaptive]
        )
        lengths = dict(zip(adaptive, kept, strict=True))
        shortened = [(mine, draft.shortened([lengths.get(i) for i in mine])) for mine, draft in drafts]
        worth = [(mine, draft) for mine, draft in shortened if any(draft.lengths)]
        return worth, [proposed[i][: lengths[i]] for i in adaptive]

    def learn(
        self,
        rows: Sequence[SequenceState],
        plan: RoundPlan,
        outcomes: Sequence[Outcome],
        draft_s: float,
        verify_s: float,
    ) -> None:
        """Take in what the round has shown about costs and acceptance. Times are seconds."""
        if plan.proposal.fault is not None:
            for row in rows:
                if row.drafter == plan.drafter:  # else it has failed since
                    self._on_fault(row, plan.proposal.fault)
        # A row's first draft may have read the whole prompt: that says nothing about a draft step.
        drafter = None if any(row.rounds == 0 for row in rows) else plan.drafter
        count, lengths, buckets, verified = len(rows), plan.proposal.lengths, plan.buckets, list[VerifiedDraft]()
        if plan.steps or any(buckets):
            for own, i in zip(buckets, plan.adaptive, strict=True):
                tree, outcome = plan.proposal.trees[i], outcomes[i]
                shape = tree if tree.branches else None
                verified.append(VerifiedDraft(own, outcome.accepted, shape, outcome.path, plan.steps_of(i)))
        names = [rows[i].request.request_id for i in plan.adaptive]
        width = count + sum(lengths) if self._costs.ragged else 1 + max(lengths)
        self._lessons.append(_Lesson(names, verified, count, width, plan.steps, drafter, draft_s, verify_s))
        if len(self._lessons) >= _TOGETHER:
            self._study()

    def _study(self) -> None:
        """Learn from the rounds since the last time."""
        lessons, self._lessons = self._lessons, []
        for each in lessons:
            self._costs.observe_pass(each.rows, each.width, each.verify_s)
            draft_s = each.draft_s if each.drafter and each.steps else 0.0
            if each.drafter and each.steps:
                self._costs.observe_draft(each.drafter, each.rows, each.steps, each.draft_s)
            # A row whose drafter has failed since learns nothing more.
            known = [k for k, name in enumerate(each.names) if name in self._acceptances]
            if known:
                acceptances = [self._acceptances[each.names[k]] for k in known]
                verified = [each.verified[k] for k in known] if each.verified else ()
                self._controller.observe(acceptances, verified, each.rows, draft_s)

    def learn_plain(self, rows: int, seconds: float) -> None:
        """Observe the time of a plain pass that was run for comparison between rounds of so many rows."""
        self._costs.observe_pass(rows, self._costs.plain_width(rows), seconds)

    def learn_rest(self, rows: int, plan: RoundPlan, draft_s: float, rest_s: float) -> None:
        """Observe the time of a round of so many rows besides draft steps and verification."""
        self._costs.observe_rest(rows, rest_s if plan.steps else draft_s + rest_s, drafted=plan.drafts)

    def _propose(
        self, rows: Sequence[SequenceState], gammas: Sequence[int], budgets: Budgets, free: Sequence[int]
    ) -> list[tuple[list[int], Draft]]:
        """Each drafter's draft, with the rows (by index) it is for: of `free` ones, what takes no draft step."""
        drafts = []
        for name in dict.fromkeys(row.drafter for row in rows):
            drafter = self.drafters.by_name[name]
            at_zero = drafter.profile.proposes_at_zero
            mine = [
                i for i, row in enumerate(rows) if row.drafter == name and (gammas[i] > 0 or (at_zero and i in free))
            ]
            if not mine:
                continue
            try:
                requested = [gammas[i] for i in mine]
                draft = drafter.propose([rows[i] for i in mine], requested, [budgets[i] for i in mine])
                if len(mine) < len(rows) or not self._target.capabilities.packed:  # others may use the same head
                    draft = draft.settled()
                draft.check([rows[i].room for i in mine] if at_zero else requested)
            except Exception as error:  # a drafter is a plug: whatever it raises, the target continues alone
                for i in mine:
                    self._on_fault(rows[i], error)
                continue
            drafts.append((mine, draft))
        return drafts
