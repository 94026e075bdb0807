"""A long prompt is read in chunks, by the target and by drafters: other rows wait for one, or for two of a burst."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from specchat.engine import Engine, EngineConfig, Event, Finished, Outbox, Prefilled, Request, Round
from specchat.engine.backends.transformers_backend import TransformersBackend
from specchat.engine.drafters import suffix
from specchat.engine.drafters.suffix_automaton import SuffixAutomaton
from specchat.engine.progress import Progress
from specchat.engine.research import ngram
from specchat.engine.worker.assembly import Assembly, put_together
from tests.engine.tiny import ids_of, tiny_engine, tiny_head, tiny_model

CHUNK = 16
LONG = tuple((7 * k + k // 5) % 250 for k in range(230))


class Logged(Outbox):
    """Notes every round among what else is done."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    def put(self, event: Event) -> None:
        if isinstance(event, Round):
            self.log.append("round")
        super().put(event)


@pytest.mark.parametrize("drafter", ["none", "ngram", "suffix", "model"])
def test_rows_wait_for_one_chunk_whoever_reads(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    prefill, update, extend = TransformersBackend.prefill, ngram.NGramPredictor.extend, SuffixAutomaton.extend

    def passes(runner: TransformersBackend, tokens: Tensor, *rest: Sequence[int]) -> Tensor | None:
        assert tokens.numel() <= CHUNK
        log.append("chunk")
        return prefill(runner, tokens, *rest)

    def counts(predictor: ngram.NGramPredictor, tokens: Iterable[int]) -> None:
        tokens = list(tokens)
        assert len(tokens) <= CHUNK
        log.append("chunk")
        update(predictor, tokens)

    def reads(text: SuffixAutomaton, tokens: Iterable[int]) -> None:
        tokens = list(tokens)
        assert len(tokens) <= CHUNK
        log.append("chunk")
        extend(text, tokens)

    target, draft = tiny_model(), tiny_model(seed=1, layers=1)

    def assemble(config: EngineConfig, progress: Progress) -> Assembly:  # noqa: ARG001
        return put_together(config, target, draft)

    engine = Engine(EngineConfig("tiny", Path(), slots=2, context=256, prefill_chunk=CHUNK), assemble)
    engine.start()
    engine.wait_ready(60)
    monkeypatch.setattr(TransformersBackend, "prefill", passes)
    if drafter == "ngram":
        monkeypatch.setattr(ngram.NGramDrafter, "chunk", CHUNK)
        monkeypatch.setattr(ngram.NGramPredictor, "extend", counts)
    if drafter == "suffix":
        monkeypatch.setattr(suffix.SuffixDrafter, "chunk", CHUNK)
        monkeypatch.setattr(SuffixAutomaton, "extend", reads)
    first, second = Logged(log), Outbox()
    engine.pause()  # the short one must not end before the other has come, however long this thread has to wait
    engine.step()
    engine.submit(Request("short", prompt_ids=(1, 2, 3), drafter="none", max_tokens=200), first)
    first.get(120)
    other = Request("other", prompt_ids=(9, *LONG), drafter=drafter, gamma=3, max_tokens=9)
    engine.submit(other, second)
    engine.resume()
    events = collected(second)
    engine.close()
    waits = [len(wait) for wait in "".join(entry[0] for entry in log).split("r")]
    assert sum(waits) >= len(LONG) // CHUNK
    assert max(waits[1:-1]) <= 2, "its own chunk, and the one that a round of the long row begins with"
    assert len(ids_of(events)) == 9


def test_of_several_prompts_two_chunks_are_read_before_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    prefill = TransformersBackend.prefill

    def passes(runner: TransformersBackend, tokens: Tensor, *rest: Sequence[int]) -> Tensor | None:
        log.append("chunk")
        return prefill(runner, tokens, *rest)

    with tiny_engine(tiny_model(), slots=4, chunk=CHUNK) as engine:
        monkeypatch.setattr(TransformersBackend, "prefill", passes)
        first, others = Logged(log), [Outbox() for _ in range(3)]
        engine.pause()
        engine.step()
        engine.submit(Request("short", prompt_ids=(1, 2, 3), drafter="none", max_tokens=200), first)
        first.get(120)
        for number, box in enumerate(others):
            engine.submit(Request(f"{number}", prompt_ids=(9 + number, *LONG), drafter="none", max_tokens=2), box)
        engine.resume()
        for box in others:
            collected(box)
    waits = [len(wait) for wait in "".join(entry[0] for entry in log).split("r")]
    assert sum(waits) >= 3 * (len(LONG) // CHUNK)
    assert max(waits[1:-1]) == 2
    last = [wait for wait in waits if wait][-(len(LONG) // CHUNK // 2) :]
    assert set(last) == {1}, "the last prompt is alone"


@pytest.mark.parametrize("drafter", ["none", "combined", "model"])
def test_prompts_that_wait_are_read_in_one_pass(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_model()
    draft = {"draft": tiny_model(seed=1, layers=1)} if drafter == "model" else {"head": tiny_head(target)}
    requests = [
        Request(f"{n}", prompt_ids=tuple(range(7 * n, 8 * n + 9)), drafter=drafter, max_tokens=8) for n in range(5)
    ]
    with tiny_engine(target, **draft, slots=5, chunk=64) as engine:  # type: ignore[arg-type]
        alone = [ids_of(list(engine.stream(request))) for request in requests]
    read: dict[TransformersBackend, list[tuple[int, ...]]] = {}
    prefill = TransformersBackend.prefill

    def passes(runner: TransformersBackend, tokens: Tensor, *rest: Sequence[int]) -> Tensor | None:
        read.setdefault(runner, []).append(tuple(tokens.shape))
        return prefill(runner, tokens, *rest)

    monkeypatch.setattr(TransformersBackend, "prefill", passes)
    with tiny_engine(target, **draft, slots=5, chunk=64) as engine:  # type: ignore[arg-type]
        engine.pause()
        boxes = [Outbox() for _ in requests]
        for request, box in zip(requests, boxes, strict=True):
            engine.submit(request, box)
        engine.resume()
        together = [collected(box) for box in boxes]
    assert [ids_of(events) for events in together] == alone
    assert len(read) == 1 + (drafter == "model")
    for shapes in read.values():
        assert max(rows for rows, _ in shapes) >= 3
        assert all(rows * width <= 64 for rows, width in shapes)


@pytest.mark.parametrize("drafter", ["none", "combined"])
def test_prompts_that_begin_alike_take_as_many_passes_as_what_they_differ_in(
    drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny_model()
    shared = LONG[:40]
    requests = [
        Request(f"{n}", prompt_ids=(*shared, 200 + n, n), drafter=drafter, max_tokens=4) for n in (1, 2, 3, 4, 5)
    ]
    requests += [replace(requests[0], request_id=f"again {n}") for n in range(3)]
    with tiny_engine(target, head=tiny_head(target), slots=8, chunk=64) as engine:
        alone = [ids_of(list(engine.stream(request))) for request in requests]
    read: list[tuple[int, ...]] = []
    prefill = TransformersBackend.prefill

    def passes(runner: TransformersBackend, tokens: Tensor, *rest: Sequence[int]) -> Tensor | None:
        read.append(tuple(tokens.shape))
        return prefill(runner, tokens, *rest)

    monkeypatch.setattr(TransformersBackend, "prefill", passes)
    with tiny_engine(target, head=tiny_head(target), slots=8, chunk=64) as engine:
        engine.pause()
        boxes = [Outbox() for _ in requests]
        for request, box in zip(requests, boxes, strict=True):
            engine.submit(request, box)
        engine.resume()
        together = [collected(box) for box in boxes]
    assert [ids_of(events) for events in together] == alone
    assert len(read) == 2, read
    for events in together:
        assert [event.done for event in events if isinstance(event, Prefilled)][-1] == len(shared) + 1


def collected(box: Outbox) -> list[Event]:
    """A request's events."""
    events: list[Event] = []
    while not events or not isinstance(events[-1], Finished):
        event = box.get(120)
        assert event is not None
        events.append(event)
    return events
