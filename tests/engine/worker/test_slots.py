"""Rows stay in their slots, wherever they came in and whoever ends; no pass copies the cache, and no reply changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from torch import Tensor

from specchat.engine import Admitted, Finished, Message, Request, Sampling
from specchat.engine.backends.model_runner import ModelRunner
from specchat.engine.cache.kv_cache import CacheView
from specchat.engine.sequence.detokenizer import Detokenizer
from specchat.engine.sequence.scheduler import Placement, Scheduler
from tests.engine.tiny import ids_of, run_together, tiny_engine, tiny_head, tiny_model


@pytest.mark.parametrize("drafter", ["none", "suffix", "ngram", "recycling", "early-exit", "model", "head", "combined"])
def test_rows_that_are_scattered_read_the_cache_where_it_lies(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []
    copied: list[int] = []
    forward, update = ModelRunner.forward_tapped, CacheView.update

    def noted(runner: ModelRunner, tokens: Tensor, slots: Sequence[int], *rest: Any) -> Any:
        seen.append(list(slots))
        return forward(runner, tokens, slots, *rest)

    def watched(view: CacheView, new_key: Tensor, new_value: Tensor, layer: int, *rest: Any) -> tuple[Tensor, Tensor]:
        key, value = update(view, new_key, new_value, layer, *rest)
        for found, stored in ((key, view._cache.keys[0]), (value, view._cache.values[0])):
            if found.untyped_storage().data_ptr() != stored.untyped_storage().data_ptr():
                copied.append(layer)  # not an exception: the engine would go on without this row or draft
        return key, value

    target = tiny_model()
    draft = {"model": {"draft": tiny_model(seed=1, layers=1)}}.get(drafter, {})
    head = {"head": tiny_head(target)} if drafter in ("head", "combined") else {}
    requests = [
        Request(
            f"r{i}",
            messages=(Message("user", f"{i} " + "abcabc" * (i % 3)),),
            drafter="none" if i == 2 else drafter,
            gamma=3,
            max_tokens=24,
            sampling=Sampling(temperature=0.0 if i % 2 else 0.8, seed=i, repetition_penalty=1.2 if i == 1 else 1.0),
        )
        for i in range(3)
    ]
    with tiny_engine(target, **draft, **head) as engine:  # type: ignore[arg-type]
        alone = [ids_of(list(engine.stream(request))) for request in requests]
    slots = iter((3, 0, 1, 1, 3, 0))
    monkeypatch.setattr(Scheduler, "place", lambda _, prompt: Placement(slot := next(slots), slot, 0))  # noqa: ARG005
    monkeypatch.setattr(ModelRunner, "forward_tapped", noted)
    monkeypatch.setattr(CacheView, "update", watched)
    with tiny_engine(target, **draft, **head) as engine:  # type: ignore[arg-type]
        seen.clear()
        together = [ids_of(events) for events in run_together(engine, requests)]
        again = [ids_of(events) for events in run_together(engine, requests[::-1])]
    assert not copied
    assert together == alone
    assert again == alone[::-1]
    assert [0, 1, 3] in seen, seen
    if drafter == "model":
        assert [0, 3] in seen, "the one between them drafts with nothing"


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
        alone = ids_of(list(engine.stream(follow_up)))
    with tiny_engine(target, slots=2) as engine:
        for name, prompt in (("other", other), ("long", (*shared, *range(150, 200)))):
            assert ids_of(list(engine.stream(Request(name, prompt_ids=prompt, max_tokens=2, drafter="none"))))
        refused = Request("refused", prompt_ids=(*shared, 5), reply_ids=(6,), drafter="none")
        (end,) = engine.stream(refused)
        assert isinstance(end, Finished)
        assert "no such prefix" in end.message
        events = list(engine.stream(follow_up))
    assert any(isinstance(event, Admitted) and event.reused_tokens for event in events)
    assert ids_of(events) == alone
