"""What a round costs the host on a GPU, counted on the pretended device: launches, graphs, the memory they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from specchat.engine import EngineConfig, Event, Notice, Outbox, Round
from specchat.engine.backends.captured_passes import _sizes
from specchat.engine.backends.transformers_backend import TransformersBackend
from specchat.engine.commands import Submit
from specchat.engine.drafters.published.load import load_published
from specchat.engine.lanes.worker import LaneWorker
from specchat.engine.request import MAX_GAMMA, Request
from specchat.engine.worker.assembly import Assemble, put_together
from tests.engine.backends.gpu_cases import DRAFTERS, SAMPLINGS, parts
from tests.engine.pretend_cuda import PretendedGpu, parts_to_gpu, pretended_gpu
from tests.engine.published_heads import Tensors, eagle_1, eagle_3, llama, medusa, medusa_of_ours, write
from tests.engine.tiny import VOCABULARY, ask, tiny_engine, tiny_model

MOST = 70
"""Launches of a round, whatever drafts; a round of the 8B models takes some 3.4 ms on a fast GPU."""
OF_EVERY_DAY = [(drafter, "sampled") for drafter in ("head", "model", "suffix")]


def turns(lane: LaneWorker, box: Outbox, gpu: PretendedGpu) -> Iterator[tuple[list[str], list[Event]]]:
    """What each turn of a lane launches, and its events, until nothing is left to do."""
    while lane.busy:
        gpu.launches.clear()
        lane.turn()
        yield list(gpu.launches), box.drain()


@pytest.mark.parametrize(
    ("drafter", "sampling"),
    [
        pytest.param(*each, marks=() if each in OF_EVERY_DAY else pytest.mark.slow)
        for each in product(DRAFTERS, ("greedy", "sampled", "filtered", "lenient"))
    ],
)
def test_a_round_launches_little(drafter: str, sampling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = parts(drafter)
    with pretended_gpu(monkeypatch) as gpu:
        target, *moved = parts_to_gpu(target, *draft.values())
        parts_there = dict(zip(draft, moved, strict=True))
        assert most_launches(gpu, drafter, sampling, lambda config, _: put_together(config, target, **parts_there)) > 5


def most_launches(gpu: PretendedGpu, drafter: str, sampling: str, assemble: Assemble) -> int:
    """Launches of a round, the most of two replies; at most `MOST`."""
    box, counts = Outbox(), list[int]()
    lane = LaneWorker(EngineConfig("tiny", Path(), slots=1, context=128), box, [])
    lane.load(assemble)
    for name in ("captures", "replays"):
        counts.clear()
        request = ask("abababab", name, drafter=drafter, gamma=4, sampling=SAMPLINGS[sampling], max_tokens=24)
        lane.take(Submit(request, box, 0.0, 0))
        for launches, events in turns(lane, box, gpu):
            assert not any(isinstance(event, Notice) for event in events), events
            if any(isinstance(event, Round) for event in events):
                counts.append(len(launches))
    print(f"{drafter} {sampling}: {min(counts)} to {max(counts)} launches a round")
    assert max(counts) <= MOST
    return max(counts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "sampling"),
    product((eagle_1, eagle_3, medusa, medusa_of_ours), ("greedy", "sampled", "filtered", "lenient")),
)
def test_a_round_of_a_published_head_launches_little(
    kind: Callable[[], tuple[dict[str, Any], Tensors]], sampling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "head", *kind())
    with pretended_gpu(monkeypatch) as gpu:
        (target,) = parts_to_gpu(llama())
        head = load_published(folder, target)
        _, head = parts_to_gpu(None, head)
        assert most_launches(gpu, "head", sampling, lambda config, _: put_together(config, target, head=head)) > 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drafter", "slots", "most"),
    [
        ("none", 1, 24),
        ("none", 3, 48),
        ("bigram", 1, 30),
        ("bigram", 3, 60),
        ("combined", 1, 90),
        ("combined", 3, 180),
        ("model", 1, 60),
        ("model", 3, 120),
    ],
)
def test_no_reply_waits_for_a_graph_and_graphs_are_few(
    drafter: str, slots: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = parts(drafter)
    with pretended_gpu(monkeypatch, capture=True) as gpu:
        target, *moved = parts_to_gpu(target, *draft.values())
        box, readies = Outbox(), []
        lane = LaneWorker(EngineConfig("tiny", Path(), slots=slots, context=256), box, readies)
        made = lane.load(lambda config, _: put_together(config, target, **dict(zip(draft, moved, strict=True))))
        before = gpu.graphs
        print(f"{drafter}, slots {slots}: {before} graphs, may be {most}")
        assert 0 < before <= most
        mixed = product(("greedy", "filtered", "lenient", "penalised", "top-k", "sampled"), (3, None, 16), (0, 5))
        for number, (sampling, gamma, detail) in enumerate(mixed):
            drawn = drafter if number % 4 else ("suffix", "random")[number // 4 % 2]  # chains beside trees
            options = {"drafter": drawn, "gamma": gamma, "sampling": SAMPLINGS[sampling], "detail": detail}
            lane.take(Submit(ask("abab", f"{number}", max_tokens=2 + number % 5, **options), box, 0.0, 0))
        first = Request("one token", prompt_ids=(7,), drafter=drafter, gamma=2, max_tokens=4)
        lane.take(Submit(first, box, 0.0, 0))
        for _, events in turns(lane, box, gpu):
            assert gpu.graphs == before, events
        assert made.graph_bytes >= 2 * (MAX_GAMMA + 1) * VOCABULARY * 4, "logits of a pass, and what judges them"
        assert readies[0].cache_bytes == made.cache_bytes + made.graph_bytes


@pytest.mark.parametrize("slots", [1, 3])
def test_exact_mode_has_a_graph_for_each_extent_however_many_slots(slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended_gpu(monkeypatch) as gpu:
        (target,) = parts_to_gpu(tiny_model())
        runner = TransformersBackend(target.model, slots, 1024, 17, exact=True)
        assert runner._invariant is not None
        runner._invariant.capture()
        assert gpu.graphs == 4, "256, 512, 1024, and all columns"
        tokens = torch.zeros(slots, 5, dtype=torch.long, device=runner.device)
        runner.forward(tokens, range(slots), [300 * slot for slot in range(slots)])
        assert gpu.graphs == 4


@pytest.mark.parametrize(("columns", "most"), [(256, 14), (4113, 14), (32_785, 14), (32_785, 6), (131_089, 1)])
def test_columns_are_of_few_numbers(columns: int, most: int) -> None:
    sizes = _sizes(columns, most)
    assert sizes[-1] == columns
    assert sizes == sorted(set(sizes))
    assert len(sizes) <= max(most, 2)


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
        replies = [event for event in engine.stream(ask("hello", max_tokens=4)) if isinstance(event, Round)]
        assert replies
