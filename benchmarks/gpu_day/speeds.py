"""Speeds of one engine with a pair of 8B and 1B that agrees at 0.8 of the tokens: with and without drafts, long texts,
the costliest kernels, and transformers' own decoding in the same run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_day.bench import ON_GPU, capture_little
from benchmarks.gpu_day.section import Row
from specchat.engine.config import EngineConfig
from specchat.engine.device.device import held_memory, pick_device
from specchat.engine.engine import Engine
from specchat.engine.events import Prefilled
from specchat.engine.progress import ignore_progress
from specchat.engine.request import Request
from specchat.engine.round import Round
from specchat.engine.tools.bench.figures import Cell, Traffic, copy_bandwidth
from specchat.engine.tools.bench.peers import TransformersPeer
from specchat.engine.tools.bench.suite import Plan, Suite
from specchat.engine.tools.bench.synthetic import SHAPES, synthetic, synthetic_models, synthetic_prompts
from specchat.engine.tools.runner import NONE, Variant, run_requests, running

PAIR = "llama-3.1-8b/llama-3.2-1b" if ON_GPU else "tiny/tiny"
AGREEMENT = 0.8
GAMMAS: dict[int, tuple[int | None, ...]] = (
    {1: (2, 4, 6, None), 8: (), 4: (4, None), 16: (4, None), 32: ()} if ON_GPU else {1: (4,), 2: (4,)}
)
"""Draft lengths by number of rows, the most important first, since the section may be stopped; None for auto."""
_TOKENS = 64 if ON_GPU else 16
_COLUMNS = 8000 if ON_GPU else 300
"""Tokens of a long text."""
_KERNELS = 10


def rows() -> Iterator[Row]:
    """Start, speeds, kernels, long texts, peers."""
    capture_little()
    slots, began = max(GAMMAS), time.monotonic()
    config = EngineConfig(PAIR, Path(), slots=slots, context=_COLUMNS + 2 * _TOKENS)
    with running(config, synthetic(AGREEMENT, PAIR)) as (engine, ready, made):
        memory = (held_memory(pick_device("auto")) or 0) / 1e9
        stated = (ready.weight_bytes + ready.cache_bytes) / 1e9
        yield {"what": f"start of {PAIR}", "seconds": time.monotonic() - began, "stated GB": stated, "held GB": memory}
        traffic, bandwidth = Traffic.of(made), copy_bandwidth(made.target.device)
        del made
        for batch, gammas in GAMMAS.items():
            plan = Plan(gammas, (batch,), max_tokens=_TOKENS, passes=3 if ON_GPU else 1)
            variants = [NONE, *(Variant("model", gamma) for gamma in gammas)]
            sets = [synthetic_prompts(PAIR).first(max(batch, 2))]
            cells, _ = Suite(engine, plan, traffic, bandwidth, print).run(variants, sets)
            yield from map(_row, cells)
            if batch in (1, 8):
                yield from _kernels(engine, batch)
        yield from _peers(Suite(engine, Plan((4,), max_tokens=_TOKENS // 2, passes=1), traffic, bandwidth, print))
        for count in (1, list(GAMMAS)[1]):
            yield _long(engine, count)


def _row(cell: Cell) -> Row:
    """The figures of a cell."""
    row: Row = {
        "what": f"{cell.batch} rows, {cell.drafter} γ {cell.gamma}",
        "tokens per second": cell.tokens_per_second,
        "draft, verify, rest ms": [round(each, 3) for each in (cell.draft_ms, cell.verify_ms, cell.rest_ms)],
    }
    if cell.drafter == NONE.drafter:
        return row | {"of copy bandwidth": cell.roofline}
    row |= {"τ": cell.tau, "c": cell.cost_ratio, "pass": cell.pass_ratio}
    row |= {"predicted": cell.predicted_speedup, "measured": cell.measured_speedup}
    return row | ({"ratio": cell.measured_speedup / cell.predicted_speedup} if cell.predicted_speedup else {})


def _peers(suite: Suite) -> Iterator[Row]:
    """Speeds of transformers with networks of the same weights, and how many times as fast the engine is."""
    target, draft = synthetic_models(AGREEMENT, PAIR, "auto", "auto", ignore_progress)
    peers = [TransformersPeer(target), TransformersPeer(target, 4, draft)]
    _, cells = suite.run([NONE, Variant("model", 4)], [synthetic_prompts(PAIR).first(2)], peers)
    for cell in cells:
        yield {"what": f"{cell.name} γ {cell.gamma}", "tokens per second": cell.tokens_per_second, **cell.variants}


def _long(engine: Engine, count: int) -> Row:
    """Speeds of reading and continuing `count` long texts."""
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
    """The kernels, or the operators on a CPU, that take most of the time of several short replies."""
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
    """Requests with different prompts of one length."""
    known = SHAPES[PAIR.split("/")[0]]["vocab_size"]
    prompts = [tuple((row + 7 * place) % known for place in range(columns)) for row in range(count)]
    return [
        Request(f"{row} of {columns}", prompt_ids=prompt, drafter="none", max_tokens=_TOKENS)
        for row, prompt in enumerate(prompts)
    ]
