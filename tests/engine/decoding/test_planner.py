"""What the planner orders for rows, what it cuts from drafts, and what it learns from rounds."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specchat.engine.decoding.backend import Capabilities
from specchat.engine.decoding.draft import Draft, RowOrder
from specchat.engine.decoding.drafter import Drafter, DrafterProfile, Recipe, RowProfile
from specchat.engine.decoding.gamma.acceptance_model import Experiences
from specchat.engine.decoding.gamma.controller import GammaController
from specchat.engine.decoding.planner import Planner
from specchat.engine.decoding.round import Outcome, RoundOutcome
from specchat.engine.decoding.tree_growth import fixed_budget
from specchat.engine.drafters.none import NoDrafter
from specchat.engine.request import NO_DRAFTER, Request
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.settings import Sampling
from tests.engine.rows import row_of


class TextAndSteps(Drafter):
    """Drafts by steps, and in bucket 1 without."""

    name = "both"
    profile = DrafterProfile(buckets=(0, 1), expected_rates={0: 0.5, 1: 0.9}, methods=(0, 1), free=True)

    def __init__(self, about: RowProfile | None = None) -> None:
        self._about = about or RowProfile()

    def admit(self, row: SequenceState) -> RowProfile:  # noqa: ARG002
        return self._about


def planner_of(
    drafter: Drafter, experiences: Experiences | None = None, rounds: int = 1
) -> tuple[Planner, SequenceState]:
    """A planner that knows the costs of passes, and a row with adaptive γ."""
    target: Any = SimpleNamespace(limit=lambda _: 100, width=lambda width: width, cache=SimpleNamespace(states=None))
    target.capabilities, target.vocabulary = Capabilities(rounds=rounds), 50
    planner = Planner({drafter.name: drafter, NO_DRAFTER: NoDrafter()}, target, lambda *_: None, experiences)
    row = row_of([1, 2], request=Request("r", prompt_ids=(1, 2), drafter=drafter.name), cached=1)
    planner.admit(row)
    return planner, row


def choose(monkeypatch: pytest.MonkeyPatch, gamma: int, *, trial: bool = False) -> None:
    """The controller chooses this γ."""

    def chosen(self: GammaController, rows: Sequence[object], *_: object) -> list[int]:
        self.tries = trial
        return [gamma] * len(rows)

    monkeypatch.setattr(GammaController, "choose", chosen)


def result_of(draft: Draft) -> RoundOutcome:
    """A round in which the whole draft was accepted."""
    path = [*range(1, len(draft.tree) + 1)]
    outcome = Outcome(2, [*draft.tokens], draft.tree, path, 7, False, [], lambda _: 0.0, [])
    return RoundOutcome([draft], [outcome], 0.001, 0.01)


@pytest.mark.parametrize(("gamma", "least", "free"), [(0, 0.2, True), (3, 0.5, True), (0, 0.5, True), (0, 0.95, False)])
def test_tokens_without_draft_steps_are_ordered_where_some_can_pay(
    gamma: int, least: float, free: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(monkeypatch, gamma)
    monkeypatch.setattr(GammaController, "least_rate", lambda *_: least)
    planner, row = planner_of(TextAndSteps())
    (order,) = planner.orders([row])
    assert (order.gamma, order.free, order.drafts) == (gamma, free, free)
    assert order.budget.repeatable != free


def test_a_fixed_gamma_is_ordered_as_it_is_within_the_room_that_is_left() -> None:
    planner, row = planner_of(TextAndSteps())
    for gamma, most, ordered in ((4, 20, 4), (12, 20, 12), (12, 9, 8)):
        row.request = replace(row.request, gamma=gamma, max_tokens=most)
        assert planner.orders([row]) == [RowOrder(row, ordered, fixed_budget(ordered))]


@pytest.mark.parametrize("drawn", [True, False])
def test_a_draft_that_has_grown_stays_whole_where_it_was_drawn(drawn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If what was drawn later decided which tokens are tested, replies would not have the target's distribution."""
    choose(monkeypatch, 3)
    planner, row = planner_of(TextAndSteps(RowProfile(grows=True)))
    planner.learn_costs([(width, float(width)) for width in (1, 2, 3)] * 9, {})
    draft = replace(Draft.chain([5, 6], [0, 0]), q=torch.full((2, 9), 1 / 9) if drawn else None)
    (trimmed,) = planner.trim(planner.orders([row]), [draft], 1)
    assert len(trimmed.tree) == len(trimmed.tokens) == (2 if drawn else 0)


def test_a_trial_is_a_single_round_and_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows with a fixed γ after it run several rounds in one call again."""
    choose(monkeypatch, 3, trial=True)
    drafter = TextAndSteps()
    drafter.recipe = Recipe()
    planner, row = planner_of(drafter, rounds=4)
    planner.learn_costs([(1, 0.001)], {})
    row.rounds, most = 1, list[int]()
    for gamma in (None, 4):
        row.request = replace(row.request, gamma=gamma)
        planner.orders([row])
        most.append(planner.max_rounds([row], lambda: True))
    assert most == [1, 4]


@pytest.mark.parametrize("rounds", [1, 2, 6])
def test_what_a_reply_has_shown_is_learnt_at_its_end_at_the_latest(rounds: int) -> None:
    experiences = Experiences()
    planner, row = planner_of(TextAndSteps(), experiences)
    before = experiences.of("both", "greedy", TextAndSteps.profile).priors[0]
    for _ in range(rounds):
        planner.learn(planner.orders([row]), result_of(Draft.chain([5, 6], [0, 0])))
        row.rounds += 1
    planner.release(row)
    state = experiences.of("both", "greedy", TextAndSteps.profile).state()
    assert state["priors"][0][1] == rounds
    assert state["priors"][0][2] != before


def test_replies_with_a_seed_do_not_change_what_is_expected_of_other_sampled_replies() -> None:
    experiences = Experiences()
    planner, row = planner_of(TextAndSteps(), experiences)
    planner.release(row)
    for sampling in (Sampling(temperature=1.0, seed=3), Sampling(temperature=1.0), Sampling()):
        row.request = replace(row.request, sampling=sampling)
        row.__post_init__()
        planner.admit(row)
        planner.learn(planner.orders([row]), result_of(Draft.chain([5, 6], [0, 0])))
        planner.release(row)
    for kind in ("seeded", "sampled", "greedy"):
        assert experiences.of("both", kind, TextAndSteps.profile).state()["priors"][0][1] == 1
