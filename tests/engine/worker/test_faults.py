"""What goes wrong in the engine: one request pays for it, the others go on, and every caller hears of it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from specchat.engine import (
    Died,
    Engine,
    EngineConfig,
    EngineError,
    Event,
    Finished,
    FinishReason,
    Notice,
    Outbox,
    Prefilled,
    Request,
    Round,
)
from specchat.engine.progress import Progress
from specchat.engine.runner.kv_cache import KVCache
from specchat.engine.sequence.sequence import SequenceState
from specchat.engine.speculation.drafters.ngram import NGramDrafter
from specchat.engine.speculation.gamma.budget import Budget
from specchat.engine.speculation.proposal import Draft
from specchat.engine.worker.assembly import Assembly, put_together
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

    def propose(
        self, rows: Sequence[SequenceState], gammas: Sequence[int], budgets: Sequence[Budget | None] = ()
    ) -> Draft:
        self.rounds += 1
        if self.rounds == 3:
            raise RuntimeError("table on fire")
        return super().propose(rows, gammas, budgets)


class Excess(NGramDrafter):
    """Drafts more than it is asked for."""

    name = "ngram"

    def propose(
        self, rows: Sequence[SequenceState], gammas: Sequence[int], budgets: Sequence[Budget | None] = ()
    ) -> Draft:
        return super().propose(rows, [gamma + 1 for gamma in gammas], budgets)


def test_a_drafter_that_gives_more_than_was_asked_for_costs_the_draft_not_the_reply() -> None:
    target = tiny_model()

    def assemble(config: EngineConfig, progress: Progress) -> Assembly:  # noqa: ARG001
        made = put_together(config, target)
        made.drafters["ngram"] = Excess()
        return made

    engine = Engine(EngineConfig("tiny", Path(), context=256), assemble)
    engine.start()
    engine.wait_ready(60)
    events = list(engine.stream(ask("abababab" * 4, drafter="ngram", gamma=3, max_tokens=40)))
    plain = list(engine.stream(ask("abababab" * 4, drafter="none", max_tokens=40)))
    engine.close()
    told = [event.text for event in events if isinstance(event, Notice)]
    assert told == [
        "the ngram drafter failed (it drafted for 4 positions where 3 were asked for): "
        "this reply goes on without drafts"
    ]
    assert ids_of(events) == ids_of(plain)


def test_a_drafter_that_raises_costs_the_draft_not_the_reply() -> None:
    target = tiny_model()

    def assemble(config: EngineConfig, progress: Progress) -> Assembly:  # noqa: ARG001
        made = put_together(config, target, None)
        made.drafters["ngram"] = Faulty()
        return made

    engine = Engine(EngineConfig("tiny", Path(), context=256), assemble)
    engine.start()
    engine.wait_ready(60)
    events = list(engine.stream(ask("abcabcabc", max_tokens=30, drafter="ngram")))
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
    monkeypatch.setattr("specchat.engine.runner.device.available_memory", lambda device: 200_000)  # noqa: ARG005
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


BAD = {
    "half of a surrogate pair": (Request("bad", prompt="a\udcffb"), "surrogate"),
    "half of a surrogate pair in a message": (ask("a\ud800", "bad"), "surrogate"),
    "half of a surrogate pair in a stop string": (ask("a", "bad", stop=("\udfff",)), "surrogate"),
    "an id beyond the vocabulary": (Request("bad", prompt_ids=(1, 2, 999_999)), "999999 and the model has 260 tokens"),
    "a negative id": (Request("bad", prompt_ids=(1, -2)), "-2: token ids start at 0"),
}


@pytest.mark.parametrize(("request_", "words"), BAD.values(), ids=BAD.keys())
def test_what_no_model_can_read_is_refused_at_once(engine: Engine, request_: Request, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        engine.submit(request_)
    assert ids_of(list(engine.stream(ask("fine", "bad", max_tokens=2))))


def test_an_id_beyond_the_vocabulary_is_found_at_admission_where_the_models_were_not_loaded_yet() -> None:
    target = tiny_model()
    engine = Engine(EngineConfig("tiny", Path(), context=256), lambda config, _: put_together(config, target))
    box, good = Outbox(), Outbox()
    engine.submit(Request("bad", prompt_ids=(1, 2, 999_999)), box)
    engine.submit(ask("fine", "good", max_tokens=2), good)
    engine.start()
    assert "999999" in ended(box)[-1].message
    assert ended(good)[-1].reason is not FinishReason.ERROR
    engine.close()


def ended(box: Outbox) -> list[Event]:
    """Events up to the last one of a request."""
    events: list[Event] = []
    while not events or not isinstance(events[-1], Finished):
        event = box.get(30)
        assert event is not None, "no event for 30 seconds"
        events.append(event)
    return events


def test_an_id_is_refused_while_a_request_has_it_and_free_when_that_has_ended(engine: Engine) -> None:
    alone = ids_of(list(engine.stream(ask("first", "alone", max_tokens=100, drafter="ngram"))))
    stream = engine.stream(ask("first", "twice", max_tokens=100, drafter="ngram"))
    events = [next(stream)]
    with pytest.raises(EngineError, match="'twice' has not ended yet"):
        engine.submit(ask("second", "twice"))
    with pytest.raises(EngineError, match="'twice' has not ended yet"):
        list(engine.stream(ask("second", "twice")))
    events += stream
    assert ids_of(events) == alone
    assert sum(isinstance(event, Finished) for event in events) == 1
    assert ids_of(list(engine.stream(ask("third", "twice", max_tokens=2))))


def test_an_id_may_be_used_again_once_it_is_cancelled(engine: Engine) -> None:
    boxes = [Outbox() for _ in range(6)]
    for box in boxes:
        engine.submit(ask("again", "again", max_tokens=200), box)
        engine.cancel("again")
    last = list(engine.stream(ask("again", "again", max_tokens=2)))
    assert len(ids_of(last)) == 2
    for box in boxes:
        assert ended(box)[-1].reason is FinishReason.CANCELLED
        assert box.get(0) is None
    assert not engine._open
    assert not engine._cancelled


def test_what_a_tokenizer_raises_ends_the_request_alone() -> None:
    target = tiny_model()
    with tiny_engine(target) as engine:
        encode = target.tokenizer.encode

        def raising(text: str, **options: object) -> object:
            if "bad" in text:
                raise TypeError("not that")
            return encode(text, **options)

        target.tokenizer.encode = raising  # type: ignore[method-assign]
        results = run_together(engine, [ask("good", "good", max_tokens=20), ask("bad", "bad")])
        assert results[0][-1].reason is FinishReason.LENGTH
        assert results[1][-1].reason is FinishReason.ERROR
        assert "not that" in results[1][-1].message


@pytest.mark.parametrize("together", [1, 4])
def test_a_pass_that_fails_for_one_row_ends_that_row_alone(together: int) -> None:
    target = tiny_model()
    odd = 259  # no reply here has it
    with tiny_engine(target) as engine:
        good = [ask(f"good {i}", f"good {i}", max_tokens=30, gamma=0) for i in range(together - 1)]
        alone = [ids_of(list(engine.stream(request))) for request in good]
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
            assert ids_of(list(engine.stream(ask("fine", max_tokens=2))))


class Reluctant(NGramDrafter):
    """Raises where it is told to, and when a row ends."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def admit(self, row: SequenceState) -> None:
        if self.where == "admit":
            raise KeyError("no room")
        super().admit(row)

    def observe(self, row: SequenceState, emitted: Sequence[int]) -> None:
        if self.where == "observe":
            raise KeyError("no idea")
        super().observe(row, emitted)

    def release(self, row: SequenceState) -> None:
        raise KeyError(row.request.request_id)


@pytest.mark.parametrize("where", ["admit", "observe", "release"])
def test_a_drafter_that_raises_anywhere_costs_the_draft_not_the_reply(where: str) -> None:
    target = tiny_model()

    def assemble(config: EngineConfig, progress: Progress) -> Assembly:  # noqa: ARG001
        made = put_together(config, target, None)
        made.drafters["ngram"] = Reluctant(where)
        return made

    engine = Engine(EngineConfig("tiny", Path(), context=256), assemble)
    engine.start()
    plain = ids_of(list(engine.stream(ask("abcabcabc", max_tokens=30, drafter="none"))))
    for _ in range(2):
        events = list(engine.stream(ask("abcabcabc", max_tokens=30, drafter="ngram")))
        assert ids_of(events) == plain
        assert any(isinstance(event, Notice) for event in events) == (where != "release")
    engine.close()


def test_the_last_words_are_said_whatever_else_fails() -> None:
    target = tiny_model()
    with tiny_engine(target, slots=1) as engine:
        streams = [engine.stream(ask("on and on", f"r{i}", max_tokens=200)) for i in range(3)]
        next(streams[0])
        boxes = [Outbox() for _ in streams[1:]]
        for i, box in enumerate(boxes):
            engine.submit(ask("and on", f"w{i}"), box)

        def broken(*_: object, **__: object) -> None:
            raise SystemExit("gone")

        target.tokenizer.decode = broken  # type: ignore[method-assign]
        target.model.forward = broken  # type: ignore[method-assign]
        assert list(streams[0])[-1].reason is FinishReason.ERROR
        for box in boxes:
            events = ended(box)
            assert [type(event) for event in events] == [Finished]
            assert events[0].reason is FinishReason.ERROR
        with pytest.raises(EngineError, match="gone"):
            engine.wait_ready(30)
        assert any(isinstance(event, Died) for event in engine.outbox.drain())


def test_closing_ends_each_request_once() -> None:
    with tiny_engine(slots=1) as engine:
        boxes = [Outbox() for _ in range(4)]
        for i, box in enumerate(boxes):
            engine.submit(ask("on and on", f"r{i}", max_tokens=200), box)
        assert boxes[0].get(30)
        engine.close()
    for box in boxes:
        ends = [event for event in box.drain() if isinstance(event, Finished)]
        assert [end.reason for end in ends] == [FinishReason.CANCELLED]


def test_prompts_are_read_in_the_order_of_admission() -> None:
    with tiny_engine(slots=4, chunk=8) as engine:
        # The second slot becomes free while a long prompt in the fourth is being read: what is put there waits.
        boxes = [Outbox() for _ in range(5)]
        lengths = [2, 2, 2, 200, 200]
        for i, length in enumerate(lengths):
            prompt = tuple((i * 7 + k * (i + 3)) % 256 for k in range(length))
            engine.submit(Request(f"r{i}", prompt_ids=prompt, max_tokens=4, gamma=0), boxes[i])
        events = [ended(box) for box in boxes]
    ends = [max(e.at for e in mine if isinstance(e, Prefilled)) for mine in events]
    assert ends == sorted(ends)


def test_the_cache_of_a_size_that_does_not_fit_is_gone_before_the_next_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, draft = tiny_model(), tiny_model(seed=1)
    alive: weakref.WeakSet[KVCache] = weakref.WeakSet()
    fits = 300_000
    made = KVCache.__init__

    def counted(cache: KVCache, *args: object, **options: object) -> None:
        made(cache, *args, **options)  # type: ignore[arg-type]
        alive.add(cache)

    monkeypatch.setattr(KVCache, "__init__", counted)
    monkeypatch.setattr(
        "specchat.engine.runner.device.available_memory", lambda _: fits - sum(cache.bytes for cache in alive)
    )
    config = EngineConfig("tiny", Path(), slots=8, context=256)
    room = put_together(config, target, draft)
    assert room.draft_runner is not None
    one = KVCache([(2, 8, 2, 8)] * 2, 1, 256 + 18, torch.device("cpu"), torch.float32).bytes
    most = next(slots for slots in (8, 4, 2, 1) if 2 * slots * one <= fits)
    assert room.target.cache.slots == room.draft_runner.cache.slots == most
