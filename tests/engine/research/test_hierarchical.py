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
