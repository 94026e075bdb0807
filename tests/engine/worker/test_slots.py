"""Rows stay in their slots, wherever they were placed and whichever ends first, and no reply changes."""

from collections.abc import Sequence

import pytest

from specchat.engine import Admitted, Finished, Request
from specchat.engine.sequence.detokenizer import Detokenizer
from tests.engine.tiny import ids_of, tiny_engine, tiny_model


def test_a_request_that_is_refused_late_leaves_what_slots_hold_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    target, begin = tiny_model(), Detokenizer.begin

    def reluctant(text: Detokenizer, tokens: Sequence[int]) -> list[str]:
        if tokens:
            raise ValueError("no such prefix")
        return begin(text, tokens)

    monkeypatch.setattr(Detokenizer, "begin", reluctant)
    other, shared = tuple(range(40, 80)), tuple(range(97, 117))
    follow_up = Request("follow", prompt_ids=(*other, 33), max_tokens=12, drafter="none")
    with tiny_engine(target, slots=2) as engine:
        alone = ids_of(engine.stream(follow_up))
    with tiny_engine(target, slots=2) as engine:
        for name, prompt in (("other", other), ("long", (*shared, *range(150, 200)))):
            assert ids_of(engine.stream(Request(name, prompt_ids=prompt, max_tokens=2, drafter="none")))
        refused = Request("refused", prompt_ids=(*shared, 5), reply_ids=(6,), drafter="none")
        (end,) = engine.stream(refused)
        assert isinstance(end, Finished)
        assert "no such prefix" in end.message
        events = list(engine.stream(follow_up))
    assert any(isinstance(event, Admitted) and event.reused_tokens for event in events)
    assert ids_of(events) == alone
