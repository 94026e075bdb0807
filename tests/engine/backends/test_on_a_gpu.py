"""The engine on a GPU, also on a pretended one.

Every round runs on a pretended device (`tests.engine.pretend_cuda`), by the code that is for CUDA: nothing may mix
devices, the host may wait once in a round, and what comes out is what the CPU gives. Where there is a GPU (`pytest -m
gpu tests/engine/backends`) the same is asked of it, with graphs, compiled layers and kernels for attention.
"""

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from specchat.engine import EngineConfig, EngineError, FinishReason, Request, Round, Sampling
from specchat.engine.backends.transformers_backend import TransformersBackend
from specchat.engine.device import graphs
from specchat.engine.device.graphs import Graphs
from specchat.engine.worker.assembly import Assembly, assemble_loaded, free_memory
from tests.engine.backends.gpu_cases import DRAFTERS, SAMPLINGS, replies
from tests.engine.block_drafters import KINDS as BLOCKS
from tests.engine.block_drafters import write_block
from tests.engine.pretend_cuda import pretended_gpu, to_gpu
from tests.engine.published_heads import KINDS, write
from tests.engine.tiny import ask, rounds_of, tiny_engine, tiny_model
from tests.engine.turns import Turns
from tests.failing import fails

OF_OTHER_SHAPE = list(product(["model-tree"], ["sampled", "filtered", "top-k"]))
"""Drafters whose trees have another shape on a GPU than on the CPU, so that sampled replies are others."""

ON_THE_HOST = ("ngram", "copy", "random", "unigram")
"""These draft on the host as suffix does: one kind of sampling is enough."""
SEVERAL_MODELS = list(product(["merged", "hierarchical"], ["sampled", "greedy", "filtered", "penalised"]))
REAL = 64
"""Hidden size of models on a real one: their heads are large enough for all kernels."""


def mixed(drafter: str, sampling: Sampling) -> list[Request]:
    """Rows of several lengths, prompts and details in one batch."""
    texts = ["abababab", "the cat sat on the mat, the cat sat", "0123456789" * 6]
    return [
        ask(text, name=str(i), drafter=drafter, gamma=gamma, sampling=sampling, max_tokens=12, detail=3 * (i == 1))
        for i, (text, gamma) in enumerate(zip(texts, (4, 2, 0), strict=True))
    ]


def assert_as_on_cpu(requests: list[Request], drafter: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    expected = replies(requests, drafter, **options)
    with pretended_gpu(monkeypatch) as gpu:
        assert replies(requests, drafter, gpu, **options) == expected


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("drafter", "kind"),
    [
        each
        for each in (*product(DRAFTERS, SAMPLINGS), *SEVERAL_MODELS)
        if each not in OF_OTHER_SHAPE and (each[0] not in ON_THE_HOST or each[1] == "filtered")
    ],
)
def test_a_gpu_gives_the_same_and_is_waited_for_once(drafter: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_as_on_cpu(mixed(drafter, SAMPLINGS[kind]), drafter, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "sampling"), product(("medusa", "medusa of ours"), SAMPLINGS))
def test_published_heads_give_it_too(kind: str, sampling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "head", *KINDS[kind][0]())
    assert_as_on_cpu(mixed("head", SAMPLINGS[sampling]), "head", monkeypatch, published=folder)


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("kind", "sampling"),
    [("speculators dspark", "sampled"), *product(("dspark",), SAMPLINGS), *product(BLOCKS, ("greedy", "filtered"))],
)
def test_so_do_block_drafters(kind: str, sampling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_block(tmp_path / "drafter", kind)
    assert_as_on_cpu(mixed("block", SAMPLINGS[sampling]), "block", monkeypatch, published=folder)


@pytest.mark.daily(1)
@pytest.mark.parametrize("kind", ["filtered", "sampled", "xtc"])
def test_trees_of_a_model_that_drafts_for_itself_are_all_accepted(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every first token is accepted if what a level sees, and q, are right; in trees of several shapes at once."""
    with pretended_gpu(monkeypatch):
        target = tiny_model()
        to_gpu(target.model)
        turns = Turns(target, {"draft": target})
        prompts = [(5, 6, 7), tuple(range(97, 117)) * 2, (9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 11)]
        options: dict[str, Any] = {"drafter": "model-tree", "max_tokens": 30, "sampling": SAMPLINGS[kind]}
        turns.submit(
            [
                Request(f"{gamma}{len(prompt)}", prompt_ids=prompt, gamma=gamma, **options)
                for prompt, gamma in zip(prompts, (3, 8, 3), strict=True)
            ]
        )
        rounds = rounds_of(turns.rest())
    assert any(record.drafted for record in rounds)
    for record in rounds:
        assert record.accepted == record.tested
        assert record.p == pytest.approx(record.q, rel=1e-3)


@pytest.mark.daily(1)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_so_does_one_that_cannot_capture(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [ask(text, name=text, drafter=drafter, gamma=3, max_tokens=16) for text in ("abababab", "cdcd")]
    expected = replies(requests, drafter)
    error = RuntimeError("operation not permitted when stream is capturing")
    with pretended_gpu(monkeypatch) as gpu:
        monkeypatch.setattr(graphs, "capture", fails(error))
        assert replies(requests, drafter, gpu, gives_up=True) == expected


@pytest.mark.daily(2)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("gamma", [None, 3])
def test_so_do_exact_mode_and_adaptive_gamma(drafter: str, gamma: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [ask(text, name=text, drafter=drafter, gamma=gamma, max_tokens=16) for text in ("abababab", "cdcd")]
    assert_as_on_cpu(requests, drafter, monkeypatch, exact=gamma is not None)


@pytest.mark.gpu
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    ("drafter", "kind"), [each for each in product(DRAFTERS, SAMPLINGS) if each not in OF_OTHER_SHAPE]
)
def test_a_real_one_gives_the_same(drafter: str, kind: str, exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Graphs, "plan", lambda *_: None)  # what is needed is captured then: all takes far longer
    requests = mixed(drafter, SAMPLINGS[kind])
    expected = replies(requests, drafter, exact=exact, hidden=REAL)
    found = replies(requests, drafter, exact=exact, real=True, hidden=REAL)
    free_memory()  # engines are in cycles, each with the memory of its caches
    assert found == expected


def test_a_gpu_that_fails_within_a_reply_ends_the_engine_in_a_sentence_and_keeps_the_reply() -> None:
    target = tiny_model()
    with tiny_engine(target) as engine:
        events = engine.stream(ask("on and on", max_tokens=200))
        kept = next(event for event in events if isinstance(event, Round))
        error = torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nCompile with")
        target.model.forward = fails(error)  # type: ignore[method-assign]
        end = list(events)[-1]
        sentence = (
            r"^the GPU has failed \(CUDA error: an illegal memory access .*\): start again, or with --device cpu$"
        )
        assert kept.pieces or kept.last_piece
        assert end.reason is FinishReason.ERROR
        assert re.search(sentence, end.message)
        with pytest.raises(EngineError, match=sentence):
            engine.wait_ready(60)


def test_memory_that_runs_out_while_warming_up_is_told_in_a_sentence() -> None:
    target = tiny_model()

    def assemble(config: EngineConfig, progress: object) -> Assembly:  # noqa: ARG001
        made = assemble_loaded(config, target)
        target.model.forward = fails(torch.OutOfMemoryError("simulated"))  # type: ignore[method-assign]
        return made

    sentence = r"out of memory: lower --context or choose a smaller model$"
    with pytest.raises(EngineError, match=sentence), tiny_engine(assemble=assemble):
        pass


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
