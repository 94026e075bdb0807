"""Errors in the engine: one request fails, the others continue, and every caller is told."""

import pytest
import torch

from specchat.engine import (
    EngineError,
    Finished,
    FinishReason,
    Outbox,
    Request,
)
from tests.engine.tiny import ask, ended, ids_of, last_words, run_together, said_while_loading, tiny_engine, tiny_model


def test_logits_that_are_no_numbers_fail_their_request_and_nobody_elses() -> None:
    target = tiny_model()
    bang = target.tokenizer.encode("!")[0]
    with tiny_engine(target) as engine:
        target.model.get_input_embeddings().weight[bang] = torch.nan
        good = Request("good", prompt_ids=(97, 98, 99), max_tokens=20)
        alone = ids_of(engine.stream(good))
        results = run_together(engine, [good, Request("bad", prompt_ids=(97, bang), max_tokens=20)])
        assert ids_of(results[0]) == alone
        assert results[1][-1].reason is FinishReason.ERROR
        assert "not a number" in results[1][-1].message
        # The slot the NaN was in is clean again.
        everyone = run_together(engine, [Request(f"g{i}", prompt_ids=(97, 98, 99), max_tokens=20) for i in range(4)])
        assert all(ids_of(events) == alone for events in everyone)


def test_out_of_memory_costs_the_youngest_request_only() -> None:
    target = tiny_model()
    with tiny_engine(target) as engine:
        alone = ids_of(engine.stream(ask("first", max_tokens=40)))
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
    monkeypatch.setattr("specchat.engine.device.device.available_memory", lambda device: 200_000)  # noqa: ARG005
    with tiny_engine(slots=4) as engine:
        ready = engine.wait_ready()
        assert ready.slots < 4
        assert ready.cache_bytes < 200_000
        assert f"room for {ready.slots} replies" in said_while_loading(engine)[0]


@pytest.mark.parametrize("together", [1, 4])
def test_a_pass_that_fails_for_one_row_ends_that_row_alone(together: int) -> None:
    target = tiny_model()
    odd = 259  # no reply here has it
    with tiny_engine(target) as engine:
        good = [ask(f"good {i}", f"good {i}", max_tokens=30, gamma=0) for i in range(together - 1)]
        alone = [ids_of(engine.stream(request)) for request in good]
        forward = target.model.forward

        def raising(*args: object, **options: object) -> object:
            if (options["input_ids"] == odd).any():  # type: ignore[attr-defined]
                raise ValueError("cannot read that")
            return forward(*args, **options)

        target.model.forward = raising  # type: ignore[method-assign]
        for _ in range(2):  # twice, with replies in between: the engine is sound
            *others, bad = run_together(engine, [*good, Request("bad", prompt_ids=(97, odd), max_tokens=9)])
            assert [ids_of(events) for events in others] == alone
            assert bad[-1].reason is FinishReason.ERROR
            assert "ValueError: cannot read that" in bad[-1].message
            assert ids_of(engine.stream(ask("fine", max_tokens=2)))


def test_the_last_words_are_said_whatever_else_fails() -> None:
    target = tiny_model()
    with tiny_engine(target, slots=1) as engine:
        streams = [engine.stream(ask("on and on", f"r{i}", max_tokens=200)) for i in range(3)]
        engine.pause()  # after its first round: it must not end before everything is broken
        engine.step()
        next(streams[0])
        boxes = [Outbox() for _ in streams[1:]]
        for i, box in enumerate(boxes):
            engine.submit(ask("and on", f"w{i}"), box)

        def broken(*_: object, **__: object) -> None:
            raise SystemExit("gone")

        target.tokenizer.decode = broken  # type: ignore[method-assign]
        target.model.forward = broken  # type: ignore[method-assign]
        engine.resume()
        assert list(streams[0])[-1].reason is FinishReason.ERROR
        for box in boxes:
            events = ended(box)
            assert [type(event) for event in events] == [Finished]
            assert events[0].reason is FinishReason.ERROR
        with pytest.raises(EngineError, match="gone"):
            engine.wait_ready(120)
        assert "gone" in last_words(engine)
        (late,) = engine.stream(ask("too late"))
        assert late.reason is FinishReason.ERROR


def test_closing_ends_each_request_once() -> None:
    with tiny_engine(slots=1) as engine:
        boxes = [Outbox() for _ in range(4)]
        for i, box in enumerate(boxes):
            engine.submit(ask("on and on", f"r{i}", max_tokens=200), box)
        assert boxes[0].get(120)
        engine.close()
    for box in boxes:
        ends = [event for event in box.drain() if isinstance(event, Finished)]
        assert [end.reason for end in ends] == [FinishReason.CANCELLED]
