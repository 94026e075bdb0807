"""Plain decoding: tokens per second and the share of the copy bandwidth at 1, 8 and 32 rows; long texts; the costliest
kernels."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_day.bench import ON_GPU, bench, capture_little, cells, rounded, started
from benchmarks.gpu_day.section import Row
from specchat.engine.engine import Engine
from specchat.engine.events import Prefilled
from specchat.engine.request import Request
from specchat.engine.round import Round
from specchat.engine.tools.bench.synthetic import SHAPES
from specchat.engine.tools.runner import run_requests

SHAPE = "llama-3.1-8b" if ON_GPU else "tiny"
BATCHES = (1, 8, 32) if ON_GPU else (1, 4)
_TOKENS = 64 if ON_GPU else 16
_COLUMNS = 8000 if ON_GPU else 300
"""Of a long text."""
_KERNELS = 10


def rows() -> Iterator[Row]:
    """Speeds, then kernels."""
    for batch in BATCHES:  # one by one, since the section may be stopped
        sizes = {"batches": [batch], "limit": batch, "max_tokens": _TOKENS, "passes": 3 if ON_GPU else 1}
        report = bench(synthetic=1.0, shape=SHAPE, drafters=["none"], **sizes)
        for name, cell in cells(report):
            yield {"what": name, **rounded(cell, "tokens_per_second", "verify_ms", "rest_ms", "roofline")}
    capture_little()
    engine, _ = started(SHAPE, slots=BATCHES[1], context=_COLUMNS + 2 * _TOKENS)
    for count in (1, BATCHES[1]):
        yield _long(engine, count)
        yield from _kernels(engine, count)
    engine.close()


def _long(engine: Engine, count: int) -> Row:
    """Speeds of reading and continuing so many long texts."""
    requests = _requests(count, _COLUMNS)
    read, _ = (run_requests(engine.submit, requests, count) for _ in range(2))  # the second time captured
    seconds = sum(event.seconds for events in read for event in events if isinstance(event, Prefilled))
    events = [event for reply in run_requests(engine.submit, requests, count) for event in reply]
    times = [each.draft_s + each.verify_s + each.rest_s for each in events if isinstance(each, Round)]
    return {
        "what": f"{count} rows of {_COLUMNS} columns",
        "tokens per second": count / statistics.median(times),
        "read per second": count * _COLUMNS / seconds,
    }


def _kernels(engine: Engine, count: int) -> Iterator[Row]:
    """The kernels, or the operators on a CPU, that take most of the time of so many short replies."""
    requests = _requests(count, 64)
    run_requests(engine.submit, requests, count)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if ON_GPU else [])]
    with profile(activities=activities) as found:
        run_requests(engine.submit, requests, count)
        if ON_GPU:
            torch.cuda.synchronize()
    field = "self_device_time_total" if ON_GPU else "self_cpu_time_total"
    by_time = sorted(found.key_averages(), key=lambda event: getattr(event, field), reverse=True)
    for event in by_time[:_KERNELS]:
        taken = getattr(event, field)
        if taken:
            yield {
                "what": f"{count} rows: {event.key[:70]}",
                "us": taken / event.count,
                "calls per round": event.count / _TOKENS,
            }


def _requests(count: int, columns: int) -> list[Request]:
    """Requests with different prompts of so many tokens."""
    known = SHAPES[SHAPE]["vocab_size"]
    prompts = [tuple((row + 7 * place) % known for place in range(columns)) for row in range(count)]
    return [
        Request(f"{row} of {columns}", prompt_ids=prompt, drafter="none", max_tokens=_TOKENS)
        for row, prompt in enumerate(prompts)
    ]
