"""Plain decoding: tokens per second and the share of the copy bandwidth at 1, 8 and 32 rows; the costliest kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_day.bench import ON_GPU, bench, cells, rounded
from benchmarks.gpu_day.section import Row
from specchat.engine.config import EngineConfig
from specchat.engine.engine import Engine
from specchat.engine.request import Request
from specchat.engine.tools.bench.synthetic import synthetic
from specchat.engine.tools.runner import captured

SHAPE = "llama-3.1-8b" if ON_GPU else "tiny"
BATCHES = (1, 8, 32) if ON_GPU else (1, 4)
_TOKENS = 64 if ON_GPU else 16
_KERNELS = 8


def rows() -> Iterator[Row]:
    """Speeds, then kernels."""
    for batch in BATCHES:  # one by one, since the section may be stopped: with more slots there are more graphs
        sizes = {"batches": [batch], "limit": batch, "max_tokens": _TOKENS, "passes": 3 if ON_GPU else 1}
        report = bench(synthetic=1.0, shape=SHAPE, drafters=["none"], **sizes)
        for name, cell in cells(report):
            yield {"what": name, **rounded(cell, "tokens_per_second", "verify_ms", "rest_ms", "roofline")}
    yield from _kernels()


def _kernels() -> Iterator[Row]:
    """The kernels, or the operators on a CPU, that take most of the time of a reply."""
    shape = "llama-3.2-1b" if ON_GPU else "tiny"
    engine = Engine(EngineConfig(shape, Path(), slots=1, context=512), synthetic(1.0, shape))
    engine.start()
    engine.wait_ready()
    captured(engine)
    request = Request("warm", prompt_ids=(1, 2, 3), drafter="none", max_tokens=_TOKENS)
    list(engine.stream(request))
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if ON_GPU else [])]
    with profile(activities=activities) as found:
        list(engine.stream(request))
        if ON_GPU:
            torch.cuda.synchronize()
    engine.close()
    field = "self_device_time_total" if ON_GPU else "self_cpu_time_total"
    by_time = sorted(found.key_averages(), key=lambda event: getattr(event, field), reverse=True)
    for event in by_time[:_KERNELS]:
        taken = getattr(event, field)
        if taken:
            yield {"what": event.key[:70], "us": taken / event.count, "calls per token": event.count / _TOKENS}
