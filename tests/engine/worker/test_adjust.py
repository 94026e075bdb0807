"""A reply whose drafting is changed while it runs: the same tokens, drafted otherwise."""

from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from specchat.engine import Engine, EngineError, Event, FinishReason, Outbox, Request, Round, Sampling
from tests.engine.drafters.models import packed_family
from tests.engine.hybrids import hybrid
from tests.engine.tiny import ask, ended, ids_of, notices_of, rounds_of, tiny_engine, tiny_head, tiny_model
from tests.engine.worker.test_shared_prefixes import of_hybrid_draft

WAYS = (
    ("ngram", 3), ("model", 2), ("none", 0), ("head", 3), ("model-tree", 3), ("model", None), ("ngram", None),
    ("head", 2), ("model", 5), ("ngram", 0),
)  # fmt: skip


def of_recurrent_draft() -> dict[str, Any]:
    """Both models on the kernels."""
    with TemporaryDirectory() as folder:
        target, draft = (packed_family(family, Path(folder) / family) for family in ("llama", "lfm2"))
    return {"target": target, "draft": draft}


class Adjusting(Outbox):
    """Asks for another way of drafting after every round, before the next one begins."""

    def __init__(self, engine: Engine, request_id: str, ways: Sequence[tuple[str, int | None]]) -> None:
        super().__init__()
        self._engine, self._id, self._ways = engine, request_id, cycle(ways)

    def put(self, event: Event) -> None:
        super().put(event)
        if isinstance(event, Round):
            self._engine.adjust(self._id, *next(self._ways))
            self._engine.step()


def adjusted(engine: Engine, request: Request, ways: Sequence[tuple[str, int | None]] = WAYS) -> list[Event]:
    box = Adjusting(engine, request.request_id, ways)
    engine.pause()
    engine.submit(request, box)
    engine.step()
    events = ended(box)
    engine.resume()
    return events


def test_a_greedy_reply_stays_the_same() -> None:
    target = tiny_model(1)
    with tiny_engine(target, tiny_model(1, layers=1), tiny_head(target)) as engine:
        text = "one two one two one two three"
        plain = list(engine.stream(ask(text, max_tokens=120, gamma=0)))
        events = adjusted(engine, ask(text, "again", max_tokens=120, gamma=4))
    assert ids_of(events) == ids_of(plain)
    rounds = rounds_of(events)
    assert {r.drafter for r in rounds} == {drafter for drafter, _ in WAYS}
    assert [(r.drafter, r.gamma) for r in rounds[1:4]] == [("ngram", 3), ("model", 2), ("none", 0)]
    assert any(r.accepted for r in rounds)


def test_a_state_of_recurrent_layers_is_found_again() -> None:
    target = hybrid("lfm2")
    with tiny_engine(target, head=tiny_head(target)) as engine:
        plain = list(engine.stream(ask("hello there " * 4, max_tokens=40, gamma=0)))
        ways = [("head", 3)] * 4 + [("none", 0)] * 5
        events = adjusted(engine, ask("hello there " * 4, "again", max_tokens=40, gamma=3, drafter="head"), ways)
    assert ids_of(events) == ids_of(plain)


@pytest.mark.parametrize("kind", [of_hybrid_draft, of_recurrent_draft])
def test_a_recurrent_draft_model_continues_to_draft(kind: Callable[[], dict[str, Any]]) -> None:
    with tiny_engine(**kind()) as engine:
        plain = list(engine.stream(ask("hello there", max_tokens=40, gamma=0)))
        for drafter in ("model", "model-tree"):
            request = ask("hello there", drafter, max_tokens=40, drafter=drafter, gamma=3)
            events = adjusted(engine, request, [(drafter, 3), (drafter, 4)])
            assert ids_of(events) == ids_of(plain)
            assert not notices_of(events)


def test_every_draft_of_the_model_itself_is_accepted_whatever_came_before() -> None:
    """The target is its own draft: a cache that went wrong at a change would show as a rejection."""
    model = tiny_model()
    with tiny_engine(model, model, tiny_head(model)) as engine:
        events = adjusted(engine, ask("abc", max_tokens=100, gamma=3, drafter="model"))
    rounds = [event for event in events if isinstance(event, Round) and event.drafter == "model"]
    assert len(rounds) > 5
    assert all(r.accepted == r.tested for r in rounds)


def test_a_sampled_reply_goes_on_with_its_seed() -> None:
    target = tiny_model()
    with tiny_engine(target, tiny_model(layers=1), tiny_head(target)) as engine:
        sampling = Sampling(temperature=1.0, seed=3)
        first, second = (adjusted(engine, ask("abc", n, max_tokens=60, sampling=sampling, gamma=2)) for n in "ab")
    assert ids_of(first) == ids_of(second)


def test_what_cannot_be_is_refused_in_a_sentence() -> None:
    with tiny_engine() as engine:
        with pytest.raises(EngineError, match="gamma is 99: it must be from 0"):
            engine.adjust("r", "ngram", 99)
        with pytest.raises(EngineError, match="drafter 'model' is not available"):
            engine.adjust("r", "model", 4)
        engine.adjust("unknown", "ngram", 4)
        assert list(engine.stream(ask("a", max_tokens=3)))[-1].reason is FinishReason.LENGTH  # type: ignore[union-attr]
