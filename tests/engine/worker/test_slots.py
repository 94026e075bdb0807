"""Rows stay in their slots, wherever they were placed and whichever ends first, and no reply changes."""

from collections.abc import Sequence

import pytest

from specchat.engine import Admitted, Finished, Request, Sampling
from specchat.engine.sequence.detokenizer import Detokenizer
from specchat.engine.sequence.sequence import Scheduler
from tests.engine.tiny import ask, ids_of, run_together, tiny_engine, tiny_head, tiny_model


@pytest.mark.daily(3)
@pytest.mark.parametrize("drafter", ["none", "suffix", "ngram", "model", "head", "combined"])
def test_replies_do_not_depend_on_their_slots(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_model()
    models = {"model": {"draft": tiny_model(seed=1, layers=1)}}.get(drafter, {"head": tiny_head(target)})
    requests = [
        ask(
            f"{i} " + "abcabc" * (i % 3),
            f"r{i}",
            drafter="none" if i == 2 else drafter,
            gamma=3,
            max_tokens=24,
            sampling=Sampling(temperature=0.0 if i % 2 else 0.8, seed=i, repetition_penalty=1.2 if i == 1 else 1.0),
        )
        for i in range(3)
    ]
    with tiny_engine(target, **models) as engine:  # type: ignore[arg-type]
        alone = [ids_of(engine.stream(request)) for request in requests]
    slots = iter((3, 0, 1, 1, 3, 0))

    def place(scheduler: Scheduler, prompt: Sequence[int]) -> tuple[int, int]:
        slot = next(slots)
        assert scheduler.pool.reserve(slot, len(prompt) + 20)
        return slot, 0

    monkeypatch.setattr(Scheduler, "place", place)
    with tiny_engine(target, **models) as engine:  # type: ignore[arg-type]
        for order in (1, -1):
            together = run_together(engine, requests[::order])
            assert [ids_of(events) for events in together] == alone[::order]


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
