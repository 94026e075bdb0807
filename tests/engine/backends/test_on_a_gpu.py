"""What the engine does on a GPU, and as far as that can be seen without one.

Every round runs on a pretended device (`tests.engine.pretend_cuda`), by the code that is for CUDA: nothing may mix
devices, the host may wait once in a round, and what comes out is what the CPU gives. Where there is a GPU (`pytest -m
gpu tests/engine/backends`) the same is asked of it, with graphs, compiled layers and kernels for attention.
"""

import queue
import re
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from specchat.engine import (
    EngineConfig,
    EngineError,
    Finished,
    FinishReason,
    Notice,
    Outbox,
    Request,
    Round,
    Sampling,
)
from specchat.engine.backends.transformers_backend import TransformersBackend
from specchat.engine.commands import Close, Command, Submit
from specchat.engine.device import graph_pool
from specchat.engine.device.graph_pool import GraphPool
from specchat.engine.device.graphs import Graphs
from specchat.engine.drafters.published.load import load_published
from specchat.engine.lanes.worker import LaneWorker
from specchat.engine.worker.assembly import Assembly, free_memory, put_together
from specchat.engine.worker.worker import Worker
from tests.engine.backends.gpu_cases import DRAFTERS, SAMPLINGS, moved, parts, parts_to_cuda
from tests.engine.pretend_cuda import GPU, OnGpu, PretendedGpu, parts_to_gpu, pretended_gpu, to_gpu
from tests.engine.published_heads import KINDS, llama, write
from tests.engine.tiny import ask, ids_of, rounds_of, started, tiny_engine, tiny_model

LATER = ("model-tree", "bigram", "unigram")
FEW = [pytest.param(each, marks=pytest.mark.slow) if each in LATER else each for each in DRAFTERS]
"""With what takes long only where there is time."""
OF_OTHER_SHAPE = list(product(["model-tree"], ["sampled", "filtered", "top-k"]))
"""Whose trees have another shape on a GPU than on the CPU, so that sampled replies are others."""
OF_EVERY_DAY = [*product(("none", "model", "combined"), ["greedy"]), ("head", "sampled")]
SEVERAL_MODELS = list(product(["merged", "hierarchical"], ["sampled", "greedy", "filtered", "penalised"]))
WAITS = {"merged": 2, "hierarchical": 1 + 4, "model-tree": 99}
"""How often the host may wait in a round, where that is not once: it sees the drafts while they are made."""
REAL = 64
"""Hidden size of models on a real one: their heads are large enough for all kernels."""


def replies(
    requests: Sequence[Request],
    drafter: str,
    gpu: PretendedGpu | None = None,
    *,
    exact: bool = False,
    gives_up: bool = False,
    real: bool = False,
    hidden: int = 32,
    published: Path | None = None,
) -> list[list[int]]:
    """The tokens of each reply; on the pretended device, every turn is checked for what the host waits for."""
    target, draft = (llama(), {}) if published else parts(drafter, hidden)
    if gpu is not None or real:
        move = parts_to_cuda if real else parts_to_gpu
        target, draft = move(target)[0], moved(draft, move)
    if published:  # which goes to where the target is
        head = load_published(published, target)
        draft = {"head": head if gpu is None else parts_to_gpu(head)[0]}

    box = Outbox()
    config = EngineConfig("tiny", Path(), slots=3, context=256, prefill_chunk=32, exact=exact, seed=5)
    lane = LaneWorker(config, box, [])
    made = lane.load(lambda config, _: put_together(config, target, **draft))
    if real:
        box.drain()  # it may say that the device is not exact
    for request in requests:
        lane.take(Submit(request, box, 0.0))
    events = []
    while lane.busy:
        if gpu is not None:
            gpu.waits.clear()
        lane.turn()
        turn = []
        while (event := box.get(0)) is not None:
            turn.append(event)
        assert gives_up or not any(isinstance(event, Notice) for event in turn), turn
        if gpu is not None:
            in_round = any(isinstance(event, Round) for event in turn)
            most = WAITS.get(drafter, 1) if in_round or drafter == "model-tree" else 0
            assert set(gpu.waits) <= {"to the host", "tolist"}, turn
            assert len(gpu.waits) <= most, turn
        events += turn
    lane.end()
    if not gives_up:
        assert made.target.performance_warnings == []
        assert all(runner.performance_warnings == [] for runner in made.draft_runners)
    ends = [event for event in events if isinstance(event, Finished)]
    assert {end.reason for end in ends} <= {FinishReason.LENGTH, FinishReason.EOS}
    return replies_of(requests, events)


def replies_of(requests: Sequence[Request], events: Sequence[object]) -> list[list[int]]:
    return [ids_of(e for e in events if getattr(e, "request_id", None) == r.request_id) for r in requests]


def mixed(drafter: str, sampling: Sampling) -> list[Request]:
    """Rows of several lengths, prompts and details in one batch."""
    texts = ["abababab", "the cat sat on the mat, the cat sat", "0123456789" * 6]
    return [
        ask(text, name=str(i), drafter=drafter, gamma=gamma, sampling=sampling, max_tokens=20, detail=3 * (i == 1))
        for i, (text, gamma) in enumerate(zip(texts, (4, 2, 0), strict=True))
    ]


@pytest.mark.parametrize(
    ("drafter", "kind"),
    [
        pytest.param(*each, marks=() if each in OF_EVERY_DAY else pytest.mark.slow)
        for each in (*product(DRAFTERS, SAMPLINGS), *SEVERAL_MODELS)
        if each not in OF_OTHER_SHAPE
    ],
)
def test_a_gpu_gives_what_the_cpu_gives_and_is_waited_for_once_a_round(
    drafter: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = mixed(drafter, SAMPLINGS[kind])
    expected = replies(requests, drafter)
    with pretended_gpu(monkeypatch) as gpu:
        assert replies(requests, drafter, gpu) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "sampling"), product(("medusa", "medusa of ours"), SAMPLINGS))
def test_published_heads_give_there_what_they_give_on_the_cpu(
    kind: str, sampling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests, folder = mixed("head", SAMPLINGS[sampling]), write(tmp_path / "head", *KINDS[kind][0]())
    expected = replies(requests, "head", published=folder)
    with pretended_gpu(monkeypatch) as gpu:
        assert replies(requests, "head", gpu, published=folder) == expected


@pytest.mark.parametrize("kind", [pytest.param("sampled", marks=pytest.mark.slow), "filtered", "xtc"])
def test_trees_of_a_model_that_drafts_for_itself_are_drawn_from_the_targets_distribution(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So every first token is accepted: what a level sees, and q, are right. In trees of several shapes at once."""
    with pretended_gpu(monkeypatch) as gpu:
        target = tiny_model()
        to_gpu(target.model)
        box = Outbox()
        lane = LaneWorker(EngineConfig("tiny", Path(), slots=3, context=256), box, [])
        lane.load(lambda config, _: put_together(config, target, target))
        prompts = [(5, 6, 7), tuple(range(97, 117)) * 2, (9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 11)]
        for prompt, gamma in zip(prompts, (3, 8, 3), strict=True):
            request = Request(
                f"{gamma}{len(prompt)}", prompt_ids=prompt, drafter="model-tree", gamma=gamma, max_tokens=30,
                sampling=SAMPLINGS[kind],
            )  # fmt: skip
            lane.take(Submit(request, box, 0.0))
        rounds: list[Round] = []
        while lane.busy:
            gpu.waits.clear()
            lane.turn()
            turn = rounds_of(box.drain())
            rounds += turn
    assert any(record.drafted for record in rounds)
    for record in rounds:
        assert record.accepted == record.tested
        assert record.p == pytest.approx(record.q, rel=1e-3)


@pytest.mark.parametrize("drafter", FEW)
def test_so_does_one_that_cannot_capture(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [ask(text, name=text, drafter=drafter, gamma=3, max_tokens=16) for text in ("abababab", "cdcd")]
    expected = replies(requests, drafter)

    def refuse(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    with pretended_gpu(monkeypatch) as gpu:
        monkeypatch.setattr(GraphPool, "_captured", refuse)
        assert replies(requests, drafter, gpu, gives_up=True) == expected


@pytest.mark.parametrize("number", [0, 4])
def test_one_shape_that_cannot_be_captured_costs_that_shape_and_is_told_once(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny_model()
    captured: list[object] = []

    def refuse_one(_: GraphPool, run: Callable[[], object]) -> Callable[[], object]:
        captured.append(run)
        if len(captured) == number + 1:
            raise RuntimeError("operation not permitted when stream is capturing")
        return gpu.captured(run)

    with pretended_gpu(monkeypatch) as gpu:
        monkeypatch.setattr(GraphPool, "_captured", refuse_one)
        to_gpu(target.model)
        box = Outbox()
        lane = LaneWorker(EngineConfig("tiny", Path(), slots=2, context=256), box, [])
        made = lane.load(lambda config, _: put_together(config, target))
        for gamma in (0, 2, 4, 8, 16):
            lane.take(Submit(ask("abababab", f"{gamma}", gamma=gamma, max_tokens=16), box, 0.0))
            while lane.busy:
                lane.turn()
        notices = [event.text for event in box.drain() if isinstance(event, Notice)]
        assert len(captured) > number + 1
        assert made.target.captured is not None
        assert len(notices) == 1
        assert "operation not permitted when stream is capturing" in notices[0]


@pytest.mark.parametrize("where", ["_warm", "_captured"])
def test_memory_that_is_short_for_a_moment_switches_nothing_off(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended_gpu(monkeypatch) as gpu:
        target = tiny_model()
        to_gpu(target.model)
        runner = TransformersBackend(target.model, 2, 64, 17)
        usual = getattr(GraphPool, where)

        def short(*_: object) -> None:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")

        monkeypatch.setattr(GraphPool, where, short)
        token = torch.zeros(1, 1, dtype=torch.long).as_subclass(OnGpu)
        with pytest.raises(RuntimeError, match="ALLOC_FAILED"):
            runner.forward(token, [0], [0])
        monkeypatch.setattr(GraphPool, where, usual)
        captured: list[object] = []
        monkeypatch.setattr(GraphPool, "_captured", lambda _, run: captured.append(run) or gpu.captured(run))
        runner.forward(token, [0], [0])
        assert len(captured) == 1
        assert runner.performance_warnings == []


@pytest.mark.parametrize("drafter", FEW)
@pytest.mark.parametrize("gamma", [None, 3])
def test_so_does_exact_mode_and_a_gamma_that_adapts(
    drafter: str, gamma: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [ask(text, name=text, drafter=drafter, gamma=gamma, max_tokens=16) for text in ("abababab", "cdcd")]
    expected = replies(requests, drafter, exact=gamma is not None)
    with pretended_gpu(monkeypatch) as gpu:
        assert replies(requests, drafter, gpu, exact=gamma is not None) == expected


@pytest.mark.gpu
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    ("drafter", "kind"), [each for each in product(DRAFTERS, SAMPLINGS) if each not in OF_OTHER_SHAPE]
)
def test_a_real_one_gives_what_the_cpu_gives(
    drafter: str, kind: str, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Graphs, "plan", lambda *_: None)  # what is needed is captured then: all takes far longer
    requests = mixed(drafter, SAMPLINGS[kind])
    expected = replies(requests, drafter, exact=exact, hidden=REAL)
    found = replies(requests, drafter, exact=exact, real=True, hidden=REAL)
    free_memory()  # engines are in cycles, each with the memory of its caches
    assert found == expected


def test_memory_that_runs_out_in_a_capture_is_no_reason_not_to_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")  # as torch does

    with pretended_gpu(monkeypatch):
        monkeypatch.setattr(GraphPool, "_captured", fail)
        pool = GraphPool(torch.device("cuda:0"), capture=True)
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            pool.graph(lambda: None)
        assert pool.not_captured is None


def test_after_a_capture_that_failed_others_get_new_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch 2.11 leaves the pool of a failed capture open, and every later capture in it fails."""
    handles, used = iter([(0, 1), (0, 2)]), []

    def fail(pool: GraphPool, _: object) -> None:
        used.append(pool._pool)
        raise RuntimeError("operation not permitted when stream is capturing")

    with pretended_gpu(monkeypatch):
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
        monkeypatch.setattr(GraphPool, "_captured", fail)
        pool = GraphPool(torch.device("cuda:0"), capture=True)
        pool.graph(lambda: None)
        monkeypatch.setattr(GraphPool, "_captured", lambda pool, _: used.append(pool._pool))
        pool.graph(lambda: None)
    assert used == [(0, 1), (0, 2)]


def test_an_engine_can_be_closed_while_it_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
    with pretended_gpu(monkeypatch, capture=True) as gpu:
        target = parts_to_gpu(tiny_model())[0]
        most, usual = 3, gpu.captured

        def close_soon(run: Callable[[], object]) -> Callable[[], object]:
            if gpu.graphs == most - 1:
                commands.put(Close())
            return usual(run)

        monkeypatch.setattr(gpu, "captured", close_soon)
        config, box, readies = EngineConfig("tiny", Path(), slots=2, context=256), Outbox(), []
        worker = Worker(config, commands, box, time.perf_counter, lambda *ready: readies.append(ready), lambda _: None)
        worker.run(lambda config, _: put_together(config, target))
    assert gpu.graphs == most
    assert not readies


def test_all_captures_share_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stream gets a workspace of cuBLAS, of 32 MiB on large GPUs."""
    made: list[object] = []
    stream = SimpleNamespace(wait_stream=lambda _: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda *_: made.append(stream) or stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(GraphPool, "_captured", lambda _, run: run)
    graph_pool._stream.cache_clear()
    for pool in [GraphPool(GPU, capture=True) for _ in range(2)]:
        pool.graph(lambda: None)
    graph_pool._stream.cache_clear()
    assert len(made) == 1


def test_a_gpu_that_fails_within_a_reply_ends_the_engine_in_a_sentence_and_keeps_the_reply() -> None:
    target = tiny_model()
    with tiny_engine(target) as engine:
        events = engine.stream(ask("on and on", max_tokens=200))
        kept = next(event for event in events if isinstance(event, Round))

        def fail(*_: object, **__: object) -> None:
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nCompile with")

        target.model.forward = fail  # type: ignore[method-assign]
        end = list(events)[-1]
        sentence = (
            r"^the GPU has failed \(CUDA error: an illegal memory access .*\): start again, or with --device cpu$"
        )
        assert kept.pieces or kept.last_piece
        assert end.reason is FinishReason.ERROR
        assert re.search(sentence, end.message)
        with pytest.raises(EngineError, match=sentence):
            engine.wait_ready(60)


def test_threads_capture_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, most = [], []

    def capture(_: GraphPool, run: Callable[[], object]) -> Callable[[], object]:
        inside.append(run)
        time.sleep(0.01)
        most.append(len(inside))
        inside.remove(run)
        return run

    with pretended_gpu(monkeypatch):
        monkeypatch.setattr(GraphPool, "_captured", capture)
        pools = [GraphPool(torch.device("cuda:0"), capture=True) for _ in range(3)]
        with ThreadPoolExecutor(3) as threads:
            for pool in pools * 3:
                threads.submit(pool.graph, lambda: None)
    assert most == [1] * 9


def test_an_engine_that_ends_gives_its_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[bool] = []
    backends: list[weakref.ref[object]] = []

    def assemble(config: EngineConfig, progress: object) -> Assembly:  # noqa: ARG001
        made = put_together(config, tiny_model())
        made.target.cycle = made.target  # type: ignore[attr-defined] # as graphs make one
        backends.append(weakref.ref(made.target))
        return made

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: alive.append(backends[-1]() is not None))
    with started(EngineConfig("tiny", Path(), context=256), assemble):
        pass
    assert alive == [False]


def test_memory_that_runs_out_while_warming_up_is_told_in_a_sentence() -> None:
    target = tiny_model()

    def short_of_memory(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("simulated")

    def assemble(config: EngineConfig, progress: object) -> Assembly:  # noqa: ARG001
        made = put_together(config, target)
        target.model.forward = short_of_memory  # type: ignore[method-assign]
        return made

    sentence = r"out of memory: lower --context or choose a smaller model$"
    with pytest.raises(EngineError, match=sentence), tiny_engine(assemble=assemble):
        pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drafter", "slots"), [*product(("none", "bigram", "combined", "model"), [1]), *product(("combined", "model"), [3])]
)
def test_no_reply_waits_for_a_graph(drafter: str, slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = parts(drafter)
    with pretended_gpu(monkeypatch, capture=True) as gpu:
        target, draft = parts_to_gpu(target)[0], moved(draft, parts_to_gpu)
        box, readies = Outbox(), []
        lane = LaneWorker(EngineConfig("tiny", Path(), slots=slots, context=256), box, readies)
        made = lane.load(lambda config, _: put_together(config, target, **draft))
        before = gpu.graphs
        assert before
        every = product(("greedy", "filtered", "lenient", "penalised", "top-k", "sampled"), (3, None, 16), (0, 5))
        for number, (sampling, gamma, detail) in enumerate(every):
            drawn = drafter if number % 4 else "suffix"  # chains next to trees
            options = {"drafter": drawn, "gamma": gamma, "sampling": SAMPLINGS[sampling], "detail": detail}
            lane.take(Submit(ask("abab", f"{number}", max_tokens=2 + number % 5, **options), box, 0.0, 0))
        first = Request("one token", prompt_ids=(7,), drafter=drafter, gamma=2, max_tokens=4)
        lane.take(Submit(first, box, 0.0, 0))
        while lane.busy:
            lane.turn()
            assert gpu.graphs == before, box.drain()
        assert readies[0].cache_bytes == made.cache_bytes + made.graph_bytes


@pytest.mark.slow
def test_where_memory_is_short_for_warming_up_there_are_fewer_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, tried = TransformersBackend.forward, []

    def short_of_memory(self: TransformersBackend, *args: object) -> torch.Tensor:
        tried.append(self.cache.slots)
        if self.cache.slots > 1:
            raise torch.OutOfMemoryError("simulated")
        return usual(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(TransformersBackend, "forward", short_of_memory)
    with tiny_engine(tiny_model(), draft=tiny_model(seed=1), slots=4) as engine:
        assert sorted(set(tried), reverse=True) == [4, 2, 1]
        assert engine.wait_ready(1).slots == 1
        assert any(isinstance(event, Round) for event in engine.stream(ask("hello", max_tokens=4)))
