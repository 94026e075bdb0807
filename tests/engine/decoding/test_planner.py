"""What the planner orders for rows, what it cuts from drafts, and what it learns from rounds."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specchat.engine.decoding.backend import Capabilities
from specchat.engine.decoding.draft import Draft, RowOrder
from specchat.engine.decoding.drafter import Drafter, DrafterProfile, RowProfile
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


def planner_of(drafter: Drafter, experiences: Experiences | None = None) -> tuple[Planner, SequenceState]:
    """A planner that knows the costs of passes, and a row with adaptive γ."""
    target: Any = SimpleNamespace(limit=lambda _: 100, width=lambda width: width, cache=SimpleNamespace(states=None))
    target.capabilities, target.vocabulary = Capabilities(rounds=1), 50
    planner = Planner({drafter.name: drafter, NO_DRAFTER: NoDrafter()}, target, lambda *_: None, experiences)
    row = row_of([1, 2], request=Request("r", prompt_ids=(1, 2), drafter=drafter.name), cached=1)
    planner.admit(row)
    return planner, row


def result_of(draft: Draft) -> RoundOutcome:
    """A round in which the whole draft was accepted."""
    path = [*range(1, len(draft.tree) + 1)]
    outcome = Outcome(2, [*draft.tokens], draft.tree, path, 7, False, [], lambda _: 0.0, [])
    return RoundOutcome([draft], [outcome], 0.001, 0.01)


def test_a_fixed_gamma_is_ordered_as_it_is_within_the_room_that_is_left() -> None:
    planner, row = planner_of(TextAndSteps())
    for gamma, most, ordered in ((4, 20, 4), (12, 20, 12), (12, 9, 8)):
        row.request = replace(row.request, gamma=gamma, max_tokens=most)
        assert planner.orders([row]) == [RowOrder(row, ordered, fixed_budget(ordered))]


@pytest.mark.parametrize("drawn", [True, False])
def test_a_draft_that_has_grown_stays_whole_where_it_was_drawn(drawn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If what was drawn later decided which tokens are tested, replies would not have the target's distribution."""
    monkeypatch.setattr(GammaController, "choose", lambda _self, rows, *_: [3] * len(rows))
    planner, row = planner_of(TextAndSteps(RowProfile(grows=True)))
    planner.learn_costs([(width, float(width)) for width in (1, 2, 3)] * 9, {})
    draft = replace(Draft.chain([5, 6], [0, 0]), q=torch.full((2, 9), 1 / 9) if drawn else None)
    (trimmed,) = planner.trim(planner.orders([row]), [draft], 1)
    assert len(trimmed.tree) == len(trimmed.tokens) == (2 if drawn else 0)


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
