"""A long prompt is read in chunks, by the target and by drafters: other rows wait for one, or for two of a burst."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from torch import Tensor

from specchat.engine import Engine, Event, Outbox, Request
from specchat.engine.backends.transformers_backend import TransformersBackend
from specchat.engine.drafters import suffix
from specchat.engine.research import ngram
from tests.engine.tiny import ended, ids_of, tiny_engine, tiny_head, tiny_model

CHUNK = 16
LONG = tuple((7 * k + k // 5) % 250 for k in range(230))
Passes = list[tuple[TransformersBackend, tuple[int, ...]]]


@pytest.fixture
def log() -> list[str]:
    """What the engine does, in order: chunk or round."""
    return []


@pytest.fixture
def passes(log: list[str], monkeypatch: pytest.MonkeyPatch) -> Passes:
    """The backend and [rows, tokens] of every prefill pass; chunks and rounds are logged."""
    seen: Passes = []
    prefill, score = TransformersBackend.prefill, TransformersBackend.score

    def noted(backend: TransformersBackend, tokens: Tensor, *rest: Sequence[int]) -> Tensor | None:
        seen.append((backend, tuple(tokens.shape)))
        log.append("chunk")
        return prefill(backend, tokens, *rest)

    def logged(backend: TransformersBackend, *rest: Any) -> Any:
        log.append("round")
        return score(backend, *rest)

    monkeypatch.setattr(TransformersBackend, "prefill", noted)
    monkeypatch.setattr(TransformersBackend, "score", logged)
    return seen


@contextmanager
def beside_a_running_row(engine: Engine, log: list[str]) -> Iterator[Callable[[Request], Outbox]]:
    """Yields what submits requests while a row runs; they begin together at the end of the context."""
    first = Outbox()
    engine.pause()  # the running row must not end before the others have come
    engine.step()
    engine.submit(Request("short", prompt_ids=(1, 2, 3), drafter="none", max_tokens=200), first)
    first.get(120)
    log.clear()

    def submit(request: Request) -> Outbox:
        engine.submit(request, box := Outbox())
        return box

    yield submit
    engine.resume()


def chunks_before_rounds(log: list[str]) -> list[int]:
    return [len(wait) for wait in "".join(entry[0] for entry in log).split("r")]


@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize("drafter", ["none", "ngram", "suffix", "model"])
def test_rows_wait_for_one_chunk_whoever_reads(drafter: str, log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (ngram.NGramDrafter, suffix.SuffixDrafter):
        monkeypatch.setattr(kind, "chunk", CHUNK)
        prefill = kind.prefill

        def noted(of: object, *rest: object, prefill: Callable[..., None] = prefill) -> None:
            log.append("chunk")
            prefill(of, *rest)

        monkeypatch.setattr(kind, "prefill", noted)
    with tiny_engine(tiny_model(), tiny_model(seed=1, layers=1), chunk=CHUNK) as engine:
        with beside_a_running_row(engine, log) as submit:
            box = submit(Request("other", prompt_ids=(9, *LONG), drafter=drafter, gamma=3, max_tokens=9))
        events = ended(box)
    waits = chunks_before_rounds(log)
    assert sum(waits) >= len(LONG) // CHUNK * (1 if drafter == "none" else 2)
    assert max(waits[1:-1]) <= 2, "its own chunk, and the chunk that a round of the long row begins with"
    assert len(ids_of(events)) == 9


def read_together(passes: Passes, requests: Sequence[Request], **models: object) -> list[list[Event]]:
    """Events of requests that are admitted together; each has the tokens that it has alone."""
    with tiny_engine(**models, slots=8, chunk=64) as engine:  # type: ignore[arg-type]
        alone = [ids_of(engine.stream(request)) for request in requests]
    passes.clear()
    with tiny_engine(**models, slots=8, chunk=64) as engine:  # type: ignore[arg-type]
        passes.clear()
        engine.pause()
        boxes = [Outbox() for _ in requests]
        for request, box in zip(requests, boxes, strict=True):
            engine.submit(request, box)
        engine.resume()
        together = [ended(box) for box in boxes]
    assert [ids_of(events) for events in together] == alone
    return together


@pytest.mark.parametrize("drafter", ["none", "combined", "model"])
def test_prompts_that_wait_are_read_in_one_pass(drafter: str, passes: Passes) -> None:
    target = tiny_model()
    models = {"draft": tiny_model(seed=1, layers=1)} if drafter == "model" else {"head": tiny_head(target)}
    requests = [
        Request(f"{n}", prompt_ids=tuple(range(7 * n, 8 * n + 9)), drafter=drafter, max_tokens=8) for n in range(5)
    ]
    read_together(passes, requests, target=target, **models)
    backends = {backend for backend, _ in passes}
    assert len(backends) == 1 + (drafter == "model")
    for backend in backends:
        assert max(rows for each, (rows, _) in passes if each is backend) >= 3
    assert all(rows * width <= 64 for _, (rows, width) in passes)
