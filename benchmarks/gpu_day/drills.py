"""Things that go wrong: a capture that waits, memory that runs out in a warm-up, engines one after the other, lanes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from benchmarks.gpu_day.bench import ON_GPU, started
from benchmarks.gpu_day.section import Row
from specchat.engine.config import EngineConfig
from specchat.engine.device.graphs import GraphPool
from specchat.engine.errors import EngineError
from specchat.engine.lanes.engine import LaneEngine
from specchat.engine.request import Request
from specchat.engine.tools.bench.synthetic import synthetic
from specchat.engine.tools.runner import reply_tokens, run_requests

SHAPE = "smollm2-135m" if ON_GPU else "tiny"
_STARTS = 4
_ROOM = 0.02
"""Share of the device's memory in the drill on memory."""


def rows() -> Iterator[Row]:
    """A row per drill."""
    if ON_GPU:
        yield _failed_capture()
        yield _short_memory()
    else:
        yield {"what": "no GPU: captures that fail and memory that runs out are left out"}
    yield _engines_in_turn()
    yield _two_lanes()


def _failed_capture() -> Row:
    """A function that waits for the device cannot be captured; the next one must be."""
    pool, x = GraphPool(torch.device("cuda", torch.cuda.current_device()), capture=True), torch.ones(4, device="cuda")
    pool.graph(lambda: x.sum().item())
    reason, pool.not_captured = pool.not_captured, None
    y = torch.zeros(4, device="cuda")
    replay = pool.graph(lambda: y.add_(x))
    y.zero_()
    replay()
    right = y.tolist() == [1.0] * 4 and pool.not_captured is None
    return {"what": "capture with .item(), then another", "reason": str(reason), "wrong": reason is None or not right}


def _short_memory() -> Row:
    """When memory is short, the engine has fewer slots, or reports the shortage in one sentence."""
    torch.cuda.set_per_process_memory_fraction(_ROOM)
    try:
        engine, ready = started(SHAPE, slots=64, context=8192)
        reply = list(engine.stream(_request("r")))
        engine.close(None)
        return {"what": "memory runs out in a warm-up", "slots": ready.slots, "wrong": not reply or ready.slots == 64}
    except EngineError as error:
        return {"what": "memory runs out in a warm-up", "said": str(error)}
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def _engines_in_turn() -> Row:
    """Memory in use after each engine that ended; it must not grow."""
    used = []
    for _ in range(_STARTS):
        engine, _ = started(SHAPE, slots=2, context=512)
        list(engine.stream(_request("r")))
        engine.close(None)
        del engine
        used.append(torch.cuda.memory_allocated() if ON_GPU else 0)
    return {
        "what": f"{_STARTS} engines, one after the other",
        "MB left": [u // 10**6 for u in used],
        "wrong": used[-1] > used[1],
    }


def _two_lanes() -> Row:
    """Two lanes on one device give the same greedy reply."""
    configs = [EngineConfig(SHAPE, Path(), slots=1, context=512) for _ in range(2)]
    engine = LaneEngine(configs, assemble=synthetic(0.8, f"{SHAPE}/{SHAPE}"))
    engine.start()
    engine.wait_ready()
    tokens = []
    for lane, drafter in enumerate(("none", "model")):
        request = Request(f"r{lane}", prompt_ids=(1, 2, 3), drafter=drafter, gamma=4, max_tokens=32)
        submit = partial(engine.submit, lane=lane)
        (events,) = run_requests(submit, [request], 1)
        tokens.append(reply_tokens(events))
    engine.close(None)
    return {"what": "two lanes", "tokens": len(tokens[0]), "wrong": tokens[0] != tokens[1]}


def _request(name: str) -> Request:
    return Request(name, prompt_ids=(1, 2, 3), drafter="none", max_tokens=16)
