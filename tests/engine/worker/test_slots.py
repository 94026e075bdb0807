"""Rows of a round lie in neighbouring slots, wherever they came in and whoever ends, and nobody's reply changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from torch import Tensor

from specchat.engine import Message, Request, Sampling
from specchat.engine.runner.model_runner import ModelRunner
from tests.engine.tiny import ids_of, run_together, tiny_engine, tiny_head, tiny_model


@pytest.mark.parametrize("drafter", ["none", "suffix", "ngram", "recycling", "early-exit", "model", "head", "combined"])
def test_rows_lie_together_and_say_the_same(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []
    forward = ModelRunner.forward_tapped

    def noted(runner: ModelRunner, tokens: Tensor, slots: Sequence[int], *rest: Any) -> Any:
        if runner.model is target.model:
            seen.append(list(slots))
        return forward(runner, tokens, slots, *rest)

    target = tiny_model()
    draft = {"model": {"draft": tiny_model(seed=1, layers=1)}}.get(drafter, {})
    head = {"head": tiny_head(target)} if drafter in ("head", "combined") else {}
    requests = [
        Request(
            f"r{i}",
            messages=(Message("user", f"{i} " + "abcabc" * (i % 3)),),
            drafter=drafter,
            gamma=3,
            max_tokens=4 + 29 * (i % 4 != 1),
            sampling=Sampling(temperature=0.0 if i % 2 else 0.8, seed=i, repetition_penalty=1.2 if i == 2 else 1.0),
        )
        for i in range(9)
    ]
    with tiny_engine(target, **draft, **head) as engine:  # type: ignore[arg-type]
        alone = [ids_of(list(engine.stream(request))) for request in requests]
        monkeypatch.setattr(ModelRunner, "forward_tapped", noted)
        together = [ids_of(events) for events in run_together(engine, requests)]
        again = [ids_of(events) for events in run_together(engine, requests[::-1])]
    assert together == alone
    assert again == alone[::-1]
    assert {len(slots) for slots in seen} >= {2, 3, 4}
    assert all(slots == list(range(slots[0], slots[0] + len(slots))) for slots in seen)
