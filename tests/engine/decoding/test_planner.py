"""What the planner asks of a drafter that knows before it drafts."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specchat.engine.decoding.backend import Capabilities
from specchat.engine.decoding.drafter import Budget, Drafter, DrafterProfile, RowProfile
from specchat.engine.decoding.gamma.controller import GammaController
from specchat.engine.decoding.gamma.experiences import Experiences
from specchat.engine.decoding.outcome import Outcome
from specchat.engine.decoding.planner import Planner
from specchat.engine.decoding.proposal import Draft
from specchat.engine.decoding.round_plan import RoundPlan
from specchat.engine.drafters.none import NoDrafter
from specchat.engine.request import NO_DRAFTER, Request, Sampling
from specchat.engine.sequence.sequence import SequenceState
from tests.engine.rows import row_of


class Knowing(Drafter):
    """Has two tokens for every row without a draft step."""

    name = "knowing"
    profile = DrafterProfile(buckets=(0,), proposes_at_zero=True)

    def __init__(self, *, sure: bool) -> None:
        self.sure, self.requested = sure, list[int]()

    def admit(self, row: SequenceState) -> RowProfile:  # noqa: ARG002
        return RowProfile(sure_bucket=lambda: 0 if self.sure else None)

    def propose(
        self,
        rows: Sequence[SequenceState],
        gammas: Sequence[int],
        budgets: Sequence[Budget | None] = (),  # noqa: ARG002
    ) -> Draft:
        self.requested += gammas
        return replace(Draft.of_chains([[5, 6] for _ in rows], [[0, 0] for _ in rows]), steps=0)


def planner_of(
    drafter: Knowing, experiences: Experiences | None = None, rounds: int = 1
) -> tuple[Planner, SequenceState]:
    target: Any = SimpleNamespace(limit=lambda _: 100, width=lambda width: width, cache=SimpleNamespace(states=None))
    target.capabilities = Capabilities(rounds=rounds)
    planner = Planner({"knowing": drafter, NO_DRAFTER: NoDrafter()}, target, lambda *_: None, experiences)
    row = row_of([1, 2], request=Request("r", prompt_ids=(1, 2), drafter="knowing"), cached=1)
    planner.admit(row)
    return planner, row


def outcome_of(plan: RoundPlan) -> Outcome:
    """Both drafted tokens are accepted."""
    return Outcome(2, [5, 6], plan.proposal.trees[0], [1, 2], 7, False, [], lambda _: 0.0, [])


@pytest.mark.parametrize("sure", [True, False])
def test_no_gamma_is_chosen_for_a_row_with_a_sure_draft(sure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(
        GammaController, "choose", lambda _self, rows, rooms, _size: chosen.extend(rooms) or [3] * len(rows)
    )
    drafter = Knowing(sure=sure)
    planner, row = planner_of(drafter)
    plan = planner.plan([row], torch.device("cpu"))
    assert drafter.requested == [0 if sure else 3]
    assert bool(chosen) is not sure
    assert plan.proposal.lengths == [2]
    assert plan.gammas == [2 if sure else 3]


@pytest.mark.parametrize("bucket", [0, 1])
def test_a_sure_draft_has_to_pay_with_the_rate_of_its_own_bucket(bucket: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GammaController, "least_rate", lambda *_: 0.5)
    monkeypatch.setattr(GammaController, "choose", lambda _self, rows, *_: [3] * len(rows))
    drafter = Knowing(sure=True)
    drafter.profile = replace(drafter.profile, buckets=(0, 1), expected_rates={0: 0.1, 1: 0.9})
    monkeypatch.setattr(drafter, "admit", lambda _: RowProfile(sure_bucket=lambda: bucket))
    planner, row = planner_of(drafter)
    planner.plan([row], torch.device("cpu"))
    assert drafter.requested == [[3], [0]][bucket]


@pytest.mark.parametrize("drawn", [True, False])
def test_a_draft_that_has_grown_stays_whole_where_it_was_drawn(drawn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If what was drawn later decided which tokens are tested, replies would not have the target's distribution."""
    monkeypatch.setattr(GammaController, "choose", lambda _self, rows, *_: [3] * len(rows))
    drafter = Knowing(sure=False)
    draft = Draft.of_chains([[5, 6]], [[0, 0]])
    if drawn:
        draft = replace(draft, q=torch.full((1, 2, 9), 1 / 9), drawn=[True])
    monkeypatch.setattr(drafter, "admit", lambda _: RowProfile(grows=True))
    monkeypatch.setattr(drafter, "propose", lambda *_: draft)
    planner, row = planner_of(drafter)
    planner.learn_costs([(width, float(width)) for width in (1, 2, 3)] * 9, {})
    assert planner.plan([row], torch.device("cpu")).proposal.lengths == [2 if drawn else 0]


def test_a_drafter_that_fails_to_say_what_it_is_sure_of_costs_the_drafts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise ValueError("no table")

    drafter = Knowing(sure=True)
    monkeypatch.setattr(drafter, "admit", lambda _: RowProfile(sure_bucket=fail))
    planner, row = planner_of(drafter)
    monkeypatch.setattr(planner, "_on_fault", lambda row, _: planner.give_up(row))
    assert planner.plan([row], torch.device("cpu")).proposal.lengths == [0]
    assert row.drafter == NO_DRAFTER


def test_a_trial_is_a_single_round_and_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows with a fixed γ after it run several rounds together again."""

    def choose(self: GammaController, rows: Sequence[object], *_: object) -> list[int]:
        self.tries = True
        return [3] * len(rows)

    monkeypatch.setattr(GammaController, "choose", choose)
    planner, row = planner_of(Knowing(sure=False), rounds=4)
    planner.learn_costs([(1, 0.001)], {})
    planner.drafters.of(row).kernel_head = 1
    monkeypatch.setattr(
        Knowing, "propose", lambda _self, rows, *_: Draft.of_chains([[] for _ in rows], [[] for _ in rows])
    )
    row.rounds = 1
    asked = []
    for gamma in (None, 4):
        row.request = replace(row.request, gamma=gamma)
        asked.append(planner.plan([row], torch.device("cpu"), lambda: True).proposal.rounds)
    assert asked == [1, 4]


@pytest.mark.parametrize("rounds", [1, 2, 6])
def test_what_a_reply_has_shown_is_learnt_at_its_end_at_the_latest(rounds: int) -> None:
    experiences = Experiences()
    planner, row = planner_of(Knowing(sure=True), experiences)
    before = experiences.of("knowing", "greedy", Knowing.profile).priors[0]
    for _ in range(rounds):
        plan = planner.plan([row], torch.device("cpu"))
        planner.learn([row], plan, [outcome_of(plan)], 0.001, 0.01)
        row.rounds += 1
    planner.release(row)
    state = experiences.of("knowing", "greedy", Knowing.profile).state()
    assert state["priors"][0][1] == rounds
    assert state["priors"][0][2] != before


def test_replies_with_a_seed_do_not_change_what_is_expected_of_other_sampled_replies() -> None:
    experiences = Experiences()
    planner, row = planner_of(Knowing(sure=True), experiences)
    planner.release(row)
    kinds = (Sampling(temperature=1.0, seed=3), Sampling(temperature=1.0), Sampling())
    for sampling in kinds:
        row.request = replace(row.request, sampling=sampling)
        row.__post_init__()
        planner.admit(row)
        plan = planner.plan([row], torch.device("cpu"))
        planner.learn([row], plan, [outcome_of(plan)], 0.001, 0.01)
        planner.release(row)
    for kind in ("seeded", "sampled", "greedy"):
        assert experiences.of("knowing", kind, Knowing.profile).state()["priors"][0][1] == 1
