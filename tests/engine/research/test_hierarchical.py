"""A draft model that the text drafts for: its own draft token for token, exact output, fewer passes."""

import pytest

from specchat.engine import Round, Sampling
from tests.engine.drafters.models import related
from tests.engine.tiny import ask, ids_of, tiny_engine, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ("abcabcabcabc", "hello", "0123456789" * 6, "x")


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(repetition_penalty=1.1, logit_bias=((101, 3.0),))], ids=["plain", "penalised"]
)
def test_its_greedy_draft_is_the_draft_models_own(sampling: Sampling) -> None:
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


def test_where_the_text_repeats_the_draft_model_makes_fewer_passes() -> None:
    draft, passes = related(noise=0.0), 0

    def count(*_: object) -> None:
        nonlocal passes
        passes += 1

    draft.model.register_forward_pre_hook(count)
    with tiny_engine(tiny_model(sharpness=25.0), draft=draft) as engine:
        counts = {}
        for drafter in ("model", "hierarchical"):
            passes = 0
            events = list(engine.stream(ask("hello", drafter=drafter, gamma=6, max_tokens=150)))
            counts[drafter] = passes / sum(len(e.drafted) for e in events if isinstance(e, Round))
    assert counts["model"] >= 1
    assert counts["hierarchical"] < 0.7, "a greedy text comes to a cycle"
