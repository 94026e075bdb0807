"""Every core drafter, greedy and filtered: the CPU's tokens, and what the host waits for and launches in a round."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import product
from pathlib import Path

import pytest
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_day.bench import ON_GPU
from benchmarks.gpu_day.section import Row
from specchat.engine.commands import Submit
from specchat.engine.config import EngineConfig
from specchat.engine.device.graphs import Graphs
from specchat.engine.events import Notice, Outbox
from specchat.engine.lanes.worker import LaneWorker
from specchat.engine.request import Request
from specchat.engine.round import Round
from specchat.engine.worker.assembly import assemble_loaded
from tests.engine.backends.gpu_cases import SAMPLINGS, moved, parts
from tests.engine.pretend_cuda import parts_to_gpu, pretended_gpu
from tests.engine.tiny import ask, ids_of

DRAFTERS = ("none", "suffix", "model", "model-tree", "head", "combined")
_HIDDEN = 64
_COUNTED = {
    "cudaLaunchKernel": "launches",
    "cuLaunchKernel": "launches",
    "cuLaunchKernelEx": "launches",
    "cudaLaunchKernelExC": "launches",
    "cudaGraphLaunch": "graphs",
    "cudaStreamSynchronize": "waits",
    "cudaDeviceSynchronize": "waits",
    "cudaMemcpyAsync": "copies",
}
Counts = dict[str, float]


def rows() -> Iterator[Row]:
    """A row per drafter and sampling."""
    for drafter, kind in product(DRAFTERS, ("greedy", "filtered")):
        requests = [
            ask(text, name=str(i), drafter=drafter, gamma=4, sampling=SAMPLINGS[kind], max_tokens=12)
            for i, text in enumerate(("abababab", "the cat sat on the mat, the cat sat", "0123456789" * 6))
        ]
        expected, _, _ = _run(requests, drafter, "cpu")
        if ON_GPU:
            found, counts, notices = _run(requests, drafter, "cuda")
        else:
            with pytest.MonkeyPatch.context() as patches, pretended_gpu(patches) as gpu:
                found, counts, notices = _run(requests, drafter, "pretended", gpu.waits)
        same = found == expected
        # Sampled trees have another shape on a GPU than on a CPU, so that replies differ.
        wrong = not same and (drafter, kind) != ("model-tree", "filtered")
        yield {"what": f"{drafter}, {kind}", "tokens as on the CPU": same, **counts, "notices": notices, "wrong": wrong}


def _run(
    requests: Sequence[Request], drafter: str, device: str, waits: list[str] | None = None
) -> tuple[list[list[int]], Counts, str]:
    """Tokens of each reply, counts per round, and what the engine said."""
    target, draft = parts(drafter, _HIDDEN)
    if device in ("cuda", "pretended"):
        move = partial(parts_to_gpu, real=device == "cuda")
        target, draft = move(target)[0], moved(draft, move)
    box = Outbox()
    lane = LaneWorker(EngineConfig("tiny", Path(), slots=3, context=256, prefill_chunk=32, seed=5), box, [])
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(Graphs, "plan", lambda *_: None)  # all that is planned would take far longer
        lane.load(lambda *_: assemble_loaded(lane.config, target, **draft))
    activities, notices = [ProfilerActivity.CPU, ProfilerActivity.CUDA], []
    for captures in (True, False):  # what is needed, when it is needed
        for request in requests:
            lane.take(Submit(request, box, 0.0))
        events, turns = [], 0
        if waits is not None:
            waits.clear()
        profiled = device == "cuda" and not captures
        with profile(activities=activities) if profiled else nullcontext() as found:
            while lane.busy:
                lane.turn()
                fresh = box.drain()
                turns += any(isinstance(event, Round) for event in fresh)
                events += fresh
                notices += [event.text for event in fresh if isinstance(event, Notice)]
    counts: Counts = defaultdict(float)
    if found is not None:
        for event in found.key_averages():
            if event.key in _COUNTED:
                counts[f"{_COUNTED[event.key]} per round"] += event.count / turns
    elif waits is not None:
        counts["waits per round"] = len(waits) / turns
    mine = {
        each.request_id: [e for e in events if getattr(e, "request_id", None) == each.request_id] for each in requests
    }
    replies = [ids_of(each) for each in mine.values()]
    return replies, dict(counts), "; ".join(notices) or "none"
