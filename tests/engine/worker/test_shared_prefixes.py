"""Texts share what was read of them: forks, edits, cancellations and a cache that is too small change no reply."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from specchat.engine import Admitted, CacheUse, Finished, FinishReason, Outbox, Prefilled, Request, Round, Sampling
from specchat.engine.cache.block_pool import BlockPool
from specchat.engine.sequence.detokenizer import Detokenizer
from specchat.engine.sequence.sequence import Scheduler
from specchat.engine.tools.runner import captured
from tests.engine.drafters.models import packed_family
from tests.engine.hybrids import hybrid
from tests.engine.tiny import (
    admitted,
    ended,
    ids_of,
    next_of,
    rounds_of,
    run_together,
    tiny_engine,
    tiny_head,
    tiny_model,
)

Kind = Callable[[], dict[str, object]]


def of_head() -> dict[str, object]:
    target = tiny_model()
    return {"target": target, "head": tiny_head(target)}


def of_draft() -> dict[str, object]:
    return {"target": tiny_model(), "draft": tiny_model(seed=1, layers=1)}


def of_hybrid() -> dict[str, object]:
    return {"target": hybrid("qwen3_5_text")}


def of_hybrid_draft() -> dict[str, object]:
    return {"target": tiny_model(), "draft": hybrid("qwen3_5_text", seed=1)}


def of_packed(family: str, cache_type: str = "f16") -> dict[str, object]:
    """The target on the kernels, which is also its own draft model."""
    with TemporaryDirectory() as folder:
        model = packed_family(family, Path(folder))
    return {"target": model, "draft": model, "cache_type": cache_type}


KINDS = {
    "none": dict, "head": of_head, "draft": of_draft, "hybrid": of_hybrid, "hybrid draft": of_hybrid_draft,
    "packed": partial(of_packed, "llama"), "packed q8": partial(of_packed, "gemma4", "q8"),
    "packed hybrid": partial(of_packed, "qwen3.5"),
}  # fmt: skip


ONE_TEXT = 1e-9
"""GB of a cache that has room for one text."""
EVERYDAY = {("none", None), ("head", ONE_TEXT), ("packed", None), ("packed q8", ONE_TEXT), ("packed hybrid", ONE_TEXT)}


def requests(seed: int, count: int) -> list[Request]:
    """Turns of chats that branch, are edited and asked again, in random order."""
    draw = random.Random(seed)
    texts: list[list[int]] = [[draw.randrange(97, 122) for _ in range(60)]]
    found = []
    for number in range(count):
        base = draw.choice(texts)
        kept = len(base) if draw.random() < 0.5 else draw.randrange(len(base) + 1)
        text = [*base[:kept], *(draw.randrange(97, 122) for _ in range(draw.randrange(1, 40)))]
        texts.append(text[-180:])
        sampling = Sampling(temperature=draw.choice([0.0, 0.0, 0.9]), seed=number)
        drafter = draw.choice(["auto", "auto", "none", "suffix"])
        found.append(
            Request(
                f"r{number}", prompt_ids=tuple(texts[-1]), max_tokens=30, sampling=sampling, drafter=drafter, gamma=3
            )
        )
    return found


def replies_alone(kind: Kind, asked: list[Request], monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Replies of an engine that remembers nothing."""
    with monkeypatch.context() as patch:
        patch.setattr(BlockPool, "commit", lambda *_, **__: None)
        with tiny_engine(slots=1, **kind()) as engine:  # type: ignore[arg-type]
            return [ids_of(engine.stream(request)) for request in asked]


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("kind", "memory"),
    [
        pytest.param(kind, memory, marks=() if (name, memory) in EVERYDAY else pytest.mark.slow, id=f"{name}-{memory}")
        for name, kind in KINDS.items()
        for memory in (None, ONE_TEXT)
    ],
)
def test_sharing_changes_no_reply(kind: Kind, memory: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    few = kind in (of_hybrid, of_hybrid_draft)
    asked, draw, suspended = requests(7, 12 if few else 24), random.Random(3), []
    alone = replies_alone(kind, asked, monkeypatch)
    suspend = Scheduler.suspend
    monkeypatch.setattr(Scheduler, "suspend", lambda self, row: (suspended.append(row), suspend(self, row))[1])
    started: list[object] = []
    with tiny_engine(slots=4, cache_memory=memory, **kind()) as engine:  # type: ignore[arg-type]
        boxes = []
        for request in asked:
            boxes.append(Outbox())
            engine.submit(request, boxes[-1])
            if draw.random() < 0.2:
                engine.cancel(request.request_id)
            elif draw.random() < 0.4:
                started.append(boxes[-1].get(60))
        for box, reply in zip(boxes, alone, strict=True):
            events = ended(box)
            last = events[-1]
            assert last.reason is not FinishReason.ERROR, last.message
            got = ids_of(rounds_of(events))
            assert got == (reply[: len(got)] if last.reason is FinishReason.CANCELLED else reply)
            started += events
    reused = sum(event.reused_tokens for event in started if isinstance(event, Admitted))
    assert reused > 100 if memory is None else suspended, reused


def test_prompts_that_share_a_beginning_wait_while_there_are_no_blocks() -> None:
    prompt = tuple(97 + i % 25 for i in range(90))
    asked = {"a": prompt, "b": prompt, "c": (99,) * 40}
    boxes = {name: Outbox() for name in ("running", *asked)}
    with tiny_engine(slots=4, chunk=32, cache_memory=ONE_TEXT) as engine:
        engine.pause()
        engine.submit(Request("running", prompt_ids=(115,) * 6, max_tokens=24, gamma=0), boxes["running"])
        engine.step()
        next_of(boxes["running"], Round)
        for name, ids in asked.items():
            engine.submit(Request(name, prompt_ids=ids, max_tokens=10, gamma=0), boxes[name])
        engine.resume()
        ends = [ended(box)[-1] for box in boxes.values()]
    assert {end.reason for end in ends} == {FinishReason.LENGTH}


@pytest.mark.parametrize("kind", ["head", "packed", pytest.param("hybrid", marks=pytest.mark.slow)])
def test_a_reply_that_is_cancelled_at_any_step_leaves_every_block_free_or_known(kind: str) -> None:
    prompt = tuple(random.Random(1).choices(range(97, 122), k=100))
    whole = Request("whole", prompt_ids=prompt, max_tokens=20, sampling=Sampling(temperature=0.9, seed=4), gamma=3)
    with tiny_engine(slots=2, cache_memory=ONE_TEXT, **KINDS[kind]()) as engine:  # type: ignore[arg-type]
        pool = captured(engine).target.cache.pool
        reply, steps = ids_of(engine.stream(whole)), 0
        list(engine.stream(Request("other", prompt_ids=(98,) * 200, max_tokens=2)))  # the cache is full
        while True:
            request, box = replace(whole, request_id=f"after {steps}"), Outbox()
            engine.submit(request, box)
            seen = [box.get(60) for _ in range(steps)]
            engine.cancel(request.request_id)
            if any(isinstance(event, Finished) for event in seen):
                break
            end = ended(box)[-1]
            assert end.reason in (FinishReason.CANCELLED, FinishReason.LENGTH, FinishReason.EOS)
            steps += 1
        assert steps > 5
        assert ids_of(engine.stream(whole)) == reply
    assert not any(pool.held(slot) for slot in range(pool.slots))
    assert pool.free + sum(pool.filled_by()[0].values()) == pool.blocks - 1


def test_a_chat_is_continued_after_many_others_without_reading_it_again() -> None:
    chats = [tuple(random.Random(n).choices(range(97, 122), k=120)) for n in range(20)]
    with tiny_engine(slots=2) as engine:
        for turn in (0, 1):
            for n, chat in enumerate(chats):
                prompt = (*chat, *range(97, 97 + turn))
                events = list(engine.stream(Request(f"{turn} {n}", prompt_ids=prompt, max_tokens=2)))
                assert admitted(events).reused_tokens >= (119 if turn else 0)


def test_the_cache_shows_whose_blocks_it_holds() -> None:
    shared = tuple(random.Random(0).choices(range(97, 122), k=96))
    with tiny_engine() as engine:
        for n in range(3):
            list(engine.stream(Request(f"r{n}", prompt_ids=(*shared, 97 + n, *[100 + n] * 40), max_tokens=2)))
        engine.drain()
        engine.show_cache()
        event = next_of(engine.outbox, CacheUse)
    first = event.texts[0]
    assert (first.request_id, first.blocks, first.shared, first.running) == ("r0", 5, 3, False)
    assert [text.blocks for text in event.texts] == [5, 2, 2]
    assert event.blocks > 9


def test_a_prompt_that_is_asked_several_times_at_once_is_read_once() -> None:
    prompt = tuple(range(97, 117)) * 5
    asked = [Request(f"r{n}", prompt_ids=prompt, max_tokens=12, sampling=Sampling(1.0, seed=n)) for n in range(4)]
    with tiny_engine(chunk=16) as engine:
        together = run_together(engine, asked)
    chunks = [sum(isinstance(event, Prefilled) for event in events) for events in together]
    assert sorted(chunks) == [1, 1, 1, 7]


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
