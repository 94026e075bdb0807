"""What the engine does on a GPU, as far as that can be seen without one.

Every round runs on a pretended device (`tests.engine.pretend_cuda`), by the code that is for CUDA: nothing may mix
devices, the host may wait once in a round, and what comes out is what the CPU gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engine import EngineConfig, Finished, FinishReason, Notice, Outbox, Request, Round, Sampling
from engine.assembly import Assembly, put_together
from engine.commands import Submit
from engine.lane_loop import Lane
from engine.loading import LoadedModel
from engine.static_steps import StaticSteps
from tests.engine.pretend_cuda import OnGpu, PretendedGpu, pretended_gpu, to_gpu
from tests.engine.tiny import ask, ids_of, tiny_head, tiny_model

DRAFTERS = ["none", "ngram", "model", "head", "combined"]
SAMPLINGS = {
    "greedy": Sampling(temperature=0.0),
    "sampled": Sampling(temperature=1.0, seed=5),
    "filtered": Sampling(temperature=0.9, top_k=40, top_p=0.9, min_p=0.02, seed=5),
    "penalised": Sampling(
        temperature=0.9, repetition_penalty=1.2, presence_penalty=0.4, logit_bias=((65, 1.5),), seed=5
    ),
    "lenient": Sampling(temperature=1.0, lenience=0.8, seed=5),
}


def parts(drafter: str) -> tuple[LoadedModel, dict[str, object]]:
    """A tiny target, and the draft model or head that the drafter needs."""
    target = tiny_model()
    if drafter == "model":
        return target, {"draft": tiny_model(seed=1, layers=1)}
    return target, {"head": tiny_head(target)} if drafter in ("head", "combined") else {}


def replies(
    requests: Sequence[Request],
    drafter: str,
    gpu: PretendedGpu | None = None,
    *,
    exact: bool = False,
    gives_up: bool = False,
) -> list[list[int]]:
    """The tokens of each reply; on the pretended device, every turn is checked for what the host waits for."""
    target, draft = parts(drafter)
    if gpu is not None:
        to_gpu(target.model)
        for part in draft.values():
            to_gpu(part.model if isinstance(part, LoadedModel) else part.head)
        if "head" in draft:
            draft["head"] = replace(draft["head"], vocabulary=draft["head"].vocabulary.as_subclass(OnGpu))

    def assemble(config: EngineConfig, progress: object) -> Assembly:  # noqa: ARG001
        return put_together(config, target, **draft)

    box = Outbox()
    config = EngineConfig("tiny", Path(), slots=3, context=256, prefill_chunk=32, exact=exact)
    lane = Lane(config, box, [])
    made = lane.load(assemble)
    for request in requests:
        lane.take(Submit(request, box, 0.0, 0, ()))
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
            assert gpu.waits == ["to the host"] * any(isinstance(event, Round) for event in turn), turn
        events += turn
    assert gpu is None or gives_up or not (made.target.hindrances or (made.drafting and made.drafting.hindrances))
    ends = [event for event in events if isinstance(event, Finished)]
    assert {end.reason for end in ends} <= {FinishReason.LENGTH, FinishReason.EOS}
    return [ids_of([e for e in events if getattr(e, "request_id", None) == r.request_id]) for r in requests]


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_gpu_gives_what_the_cpu_gives_and_is_waited_for_once_a_round(
    drafter: str, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["abababab", "the cat sat on the mat, the cat sat", "0123456789" * 6]
    requests = [
        ask(text, name=str(i), drafter=drafter, gamma=gamma, sampling=sampling, max_tokens=20, detail=3 * (i == 1))
        for i, (text, gamma) in enumerate(zip(texts, (4, 2, 0), strict=True))
    ]
    expected = replies(requests, drafter)
    with pretended_gpu(monkeypatch) as gpu:
        assert replies(requests, drafter, gpu) == expected


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_so_does_one_that_cannot_capture(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [ask(text, name=text, drafter=drafter, gamma=3, max_tokens=16) for text in ("abababab", "cdcd")]
    expected = replies(requests, drafter)

    def refuse(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    with pretended_gpu(monkeypatch) as gpu:
        monkeypatch.setattr(StaticSteps, "_captured", refuse)
        assert replies(requests, drafter, gpu, gives_up=True) == expected


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("gamma", [None, 3])
def test_so_does_exact_mode_and_a_gamma_that_adapts(
    drafter: str, gamma: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [ask(text, name=text, drafter=drafter, gamma=gamma, max_tokens=16) for text in ("abababab", "cdcd")]
    expected = replies(requests, drafter, exact=gamma is not None)
    with pretended_gpu(monkeypatch) as gpu:
        assert replies(requests, drafter, gpu, exact=gamma is not None) == expected
