"""Several draft models in one prefix tree, and a draft model that the text drafts for: who drafted what."""

from itertools import chain

import pytest

from specchat.engine import MAX_GAMMA, Round, Sampling
from specchat.engine.drafters.build_context import MOST_MODELS
from specchat.engine.models.load import LoadedModel
from specchat.engine.research.merged import PrefixTree, shares
from tests.engine.drafters.models import related
from tests.engine.tiny import ask, ids_of, rounds_of, run_together, tiny_engine, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")


def others(count: int = 1, sharpness: float = 25.0) -> list[LoadedModel]:
    """Draft models that are off in other ways than `related`."""
    return [related(0.4, sharpness, seed=10 + number) for number in range(count)]


def test_rounds_name_the_models_that_drafted_each_token() -> None:
    with tiny_engine(tiny_model(sharpness=25.0), related(), more=others(2)) as engine:
        assert engine.ready.drafters[0] == "merged"
        requests = [ask(text, drafter="merged", gamma=4, max_tokens=30, detail=1) for text in ("hello", "x", "hi")]
        replies = [list(engine.stream(request)) for request in requests]
    rounds = rounds_of(chain(*replies))
    assert any(record.accepted for record in rounds)
    named = {record.proposed_by(token) for record in rounds for token in list(record.tokens())[: len(record.drafted)]}
    assert () not in named
    assert set().union(*named) <= {"tiny (1)", "tiny (2)", "tiny (3)"}
    assert any(record.refused and record.accepted for record in rounds), "another draft must be right"


@pytest.mark.parametrize("place", [0, 1])
def test_a_draft_of_the_target_itself_is_accepted_whatever_the_others_draft(place: int) -> None:
    """Each draft model has then read what was accepted, whichever chain it comes from."""
    models = others()
    models.insert(place, tiny_model(sharpness=25.0))
    with tiny_engine(tiny_model(sharpness=25.0), models[0], more=models[1:]) as engine:
        requests = [ask(text, text, drafter="merged", gamma=4, max_tokens=31) for text in ("hello", "x", "abcabc")]
        rounds = rounds_of(chain(*run_together(engine, requests)))
    assert all(record.accepted == min(4, record.steps) for record in rounds)
    assert {record.steps for record in rounds} >= {4}


def test_the_same_token_behind_the_same_tokens_is_there_once() -> None:
    merged = PrefixTree.of([[5, 6, 7], [5, 8, 7], [9, 6], [5, 6, 7]])
    assert merged.tokens == [5, 6, 7, 8, 7, 9, 6]
    assert merged.tree.parents == (0, 1, 2, 1, 4, 0, 6)
    assert merged.owners() == [0, 0, 0, 1, 1, 2, 2]
    tests = merged.with_tests([[3, 2, 1, 0], [0, 1, 2, 3], [0, 1, 2, 3]], [0, 3, 6, 8]).candidates
    assert tests[0] == ((1, 8), (6, 6), (1, 3), (1, 0))
    assert [each.node for each in tests[1]] == [2, 4, 2]
    assert [each.source for each in tests[2]] == [2, 10]


def test_no_draft_takes_more_than_a_pass_has_room_for() -> None:
    for models in range(2, MOST_MODELS + 1):
        together = [shares(positions, models) for positions in range(1, 9)]
        assert sum(map(max, zip(*together, strict=True))) <= MAX_GAMMA
        assert all(each[0] == positions for positions, each in enumerate(together, 1))


TEXTS = ("abcabcabcabc", "hello", "0123456789" * 6, "x")


def test_its_greedy_draft_is_the_draft_models_own() -> None:
    sampling = Sampling(repetition_penalty=1.1, logit_bias=((101, 3.0),))
    with tiny_engine(tiny_model(sharpness=25.0), draft=related()) as engine:
        for text in TEXTS[:3]:
            plain = ids_of(engine.stream(ask(text, drafter="none", max_tokens=30, sampling=sampling)))
            by_drafter = []
            for drafter in ("model", "hierarchical"):
                request = ask(text, drafter=drafter, gamma=5, max_tokens=30, sampling=sampling)
                events = list(engine.stream(request))
                assert ids_of(events) == plain
                by_drafter.append([(e.drafted, e.accepted) for e in events if isinstance(e, Round)])
            assert by_drafter[0] == by_drafter[1]
