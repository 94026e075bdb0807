"""What goes wrong in the engine: one request pays for it, the others go on, and every caller hears of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from engine import (
    Died,
    Engine,
    EngineConfig,
    EngineError,
    Finished,
    FinishReason,
    Notice,
    Request,
    Round,
)
from engine.assembly import Assembly, put_together
from engine.drafters.base import Draft
from engine.drafters.ngram import NGramDrafter
from engine.progress import Progress
from engine.row import Row
from tests.engine.tiny import ask, ids_of, run_together, tiny_engine, tiny_model


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with tiny_engine() as running:
        yield running


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request("r", prompt_ids=(97,) * 256), "256 tokens"),
        (ask("hi", drafter="oracle"), "drafter 'oracle' is not there"),
        (Request("r", prompt=""), "the prompt is empty"),
    ],
    ids=["too long", "drafter", "empty"],
)
def test_bad_requests_fail_with_a_sentence_and_the_engine_goes_on(
    engine: Engine, request_: Request, words: str
) -> None:
    (finished,) = list(engine.stream(request_))
    assert isinstance(finished, Finished)
    assert finished.reason is FinishReason.ERROR
    assert words in finished.message
    assert ids_of(list(engine.stream(ask("fine", max_tokens=2))))


class Faulty(NGramDrafter):
    """Raises in its third round."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds = 0

    def propose(self, rows: Sequence[Row], gammas: Sequence[int]) -> Draft:
        self.rounds += 1
        if self.rounds == 3:
            raise RuntimeError("table on fire")
        return super().propose(rows, gammas)


def test_a_drafter_that_raises_costs_the_draft_not_the_reply() -> None:
    target = tiny_model()

    def assemble(config: EngineConfig, progress: Progress) -> Assembly:  # noqa: ARG001
        made = put_together(config, target, None)
        made.drafters["ngram"] = Faulty()
        return made

    engine = Engine(EngineConfig("tiny", Path(), context=256), assemble)
    engine.start()
    engine.wait_ready(60)
    events = list(engine.stream(ask("abcabcabc", max_tokens=30)))
    plain = list(engine.stream(ask("abcabcabc", max_tokens=30, drafter="none")))
    engine.close()
    assert ids_of(events) == ids_of(plain)
    notices = [event for event in events if isinstance(event, Notice)]
    assert len(notices) == 1
    assert "table on fire" in notices[0].text
    assert [e.drafter for e in events if isinstance(e, Round)][-1] == "none"


def test_logits_that_are_no_numbers_fail_their_request_and_nobody_elses() -> None:
    target = tiny_model()
    bang = target.tokenizer.encode("!")[0]
    with tiny_engine(target) as engine:
        target.model.get_input_embeddings().weight[bang] = torch.nan
        good = Request("good", prompt_ids=(97, 98, 99), max_tokens=20)
        alone = ids_of(list(engine.stream(good)))
        results = run_together(engine, [good, Request("bad", prompt_ids=(97, bang), max_tokens=20)])
        assert ids_of(results[0]) == alone
        assert results[1][-1].reason is FinishReason.ERROR
        assert "not a number" in results[1][-1].message
        # The slot the NaN was in is clean again.
        everyone = run_together(engine, [Request(f"g{i}", prompt_ids=(97, 98, 99), max_tokens=20) for i in range(4)])
        assert all(ids_of(events) == alone for events in everyone)


def test_when_the_thread_dies_every_caller_hears_of_it() -> None:
    target = tiny_model()
    with tiny_engine(target) as engine:
        target.model.forward = None  # type: ignore[assignment, method-assign]
        results = run_together(engine, [ask("hi", name=f"r{i}") for i in range(6)])
        assert all(events[-1].reason is FinishReason.ERROR for events in results)
        assert any(isinstance(event, Died) for event in engine.outbox.drain())
        (late,) = list(engine.stream(ask("too late")))
        assert late.reason is FinishReason.ERROR
        with pytest.raises(EngineError, match="internal error"):
            engine.wait_ready()


def test_closing_ends_open_requests() -> None:
    with tiny_engine() as engine:
        stream = engine.stream(ask("on and on", max_tokens=200))
        next(stream)
        engine.close()
        assert list(stream)[-1].reason is FinishReason.CANCELLED


def test_out_of_memory_costs_the_youngest_request_only() -> None:
    target = tiny_model()
    with tiny_engine(target) as engine:
        alone = ids_of(list(engine.stream(ask("first", max_tokens=40))))
        forward = target.model.forward

        def short_of_memory(*args: object, **options: object) -> object:
            if options["input_ids"].shape[0] > 1:  # type: ignore[attr-defined]
                raise torch.OutOfMemoryError("simulated")
            return forward(*args, **options)

        target.model.forward = short_of_memory  # type: ignore[method-assign]
        first, second = run_together(engine, [ask("first", "a", max_tokens=40), ask("second", "b", max_tokens=40)])
    assert ids_of(first) == alone
    assert second[-1].reason is FinishReason.ERROR
    assert "out of memory" in second[-1].message


def test_a_cache_that_does_not_fit_is_made_smaller_and_the_user_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.device.available_memory", lambda device: 200_000)  # noqa: ARG005
    with tiny_engine(slots=4) as engine:
        ready = engine.wait_ready()
        assert ready.slots < 4
        assert ready.cache_bytes < 200_000
        notices = [event for event in engine.outbox.drain() if isinstance(event, Notice)]
        assert f"room for {ready.slots} replies" in notices[0].text


def test_a_full_queue_refuses_by_name_and_serves_the_others() -> None:
    with tiny_engine(slots=1, queue=2) as engine:
        stream = engine.stream(ask("long", "first", max_tokens=200))
        next(stream)
        results = run_together(engine, [ask("hi", f"r{i}", max_tokens=2) for i in range(5)])
        list(stream)
    refused = [events[-1].message for events in results if events[-1].reason is FinishReason.ERROR]
    assert len(refused) == 3
    assert "2 requests are waiting already" in refused[0]
