"""Draft models whose drafts the host has to see while they are made: on a GPU they give what they give on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from specchat.engine import EngineConfig, Event, Notice, Outbox, Request, Round
from specchat.engine.commands import Submit
from specchat.engine.lanes.worker import LaneWorker
from specchat.engine.worker.assembly import put_together
from tests.engine.backends.gpu_cases import SAMPLINGS
from tests.engine.pretend_cuda import PretendedGpu, parts_to_gpu, pretended_gpu
from tests.engine.tiny import ask, ids_of, tiny_model

KINDS = [
    ("sampled", 5),
    *(pytest.param(kind, 20, marks=pytest.mark.slow) for kind in ("greedy", "sampled", "filtered", "penalised")),
]
"""With the longest reply."""


def replies(requests: Sequence[Request], gpu: PretendedGpu | None = None, most_waits: int = 0) -> list[list[int]]:
    """The tokens of each reply; on the pretended device the host may wait so many times in a round."""
    models = [tiny_model(), *(tiny_model(seed=seed, layers=1, sharpness=25.0) for seed in (1, 2))]
    target, draft, other = models if gpu is None else parts_to_gpu(*models)
    box, events = Outbox(), list[Event]()
    lane = LaneWorker(EngineConfig("tiny", Path(), slots=3, context=256, prefill_chunk=32), box, [])
    made = lane.load(lambda config, _: put_together(config, target, draft, more=(other,)))
    graphs = gpu.graphs if gpu is not None else 0
    for request in requests:
        lane.take(Submit(request, box, 0.0))
    while lane.busy:
        if gpu is not None:
            gpu.waits.clear()
        lane.turn()
        turn = box.drain()
        assert not any(isinstance(event, Notice) for event in turn), turn
        if gpu is not None:
            waits = gpu.waits if any(isinstance(event, Round) for event in turn) else []
            assert gpu.waits == ["to the host"] * len(waits)
            assert len(waits) <= most_waits
        events += turn
    assert all(runner.performance_warnings == [] for runner in made.draft_runners)
    assert gpu is None or gpu.graphs > graphs
    return [ids_of([e for e in events if getattr(e, "request_id", None) == r.request_id]) for r in requests]


def mixed(drafter: str, kind: str, longest: int) -> list[Request]:
    """Rows of several lengths, prompts and details in one batch."""
    texts = ("abababab", "the cat sat on the mat, the cat sat", "0123456789" * 6)
    return [
        ask(text, str(i), drafter=drafter, gamma=g, sampling=SAMPLINGS[kind], max_tokens=longest, detail=3 * (i == 1))
        for i, (text, g) in enumerate(zip(texts, (4, 2, 0), strict=True))
    ]


@pytest.mark.parametrize(("kind", "longest"), KINDS)
def test_merged_drafts_are_waited_for_twice_a_round(kind: str, longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = mixed("merged", kind, longest)
    expected = replies(requests)
    with pretended_gpu(monkeypatch) as gpu:
        assert replies(requests, gpu, 2) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "longest"), KINDS[1:])
def test_a_draft_model_that_the_text_drafts_for_is_waited_for_once_a_pass(
    kind: str, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = mixed("hierarchical", kind, longest)
    expected = replies(requests)
    with pretended_gpu(monkeypatch) as gpu:
        assert replies(requests, gpu, 1 + 4) == expected
