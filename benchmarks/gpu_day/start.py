"""Time from an engine's start to `Ready` and to the last graph, twice in one process, and its memory: 8B shape.

`speeds`, which runs before it, has compiled the layers and measured a first start.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.gpu_day.bench import ON_GPU, started
from benchmarks.gpu_day.section import Row
from specchat.engine.device.device import held_memory, pick_device
from specchat.engine.tools.runner import captured

SHAPE = "llama-3.1-8b" if ON_GPU else "tiny"


def rows() -> Iterator[Row]:
    """First and second start."""
    for number in ("first", "second"):
        began = time.monotonic()
        engine, ready = started(SHAPE, slots=8 if ON_GPU else 2, context=4096 if ON_GPU else 512)
        usable = time.monotonic() - began
        stated = ready.weight_bytes + ready.cache_bytes
        yield {"what": f"{number} start of {SHAPE} in a process", "seconds": usable, "stated GB": stated / 1e9}
        memory = held_memory(pick_device("auto")) or 0
        made = captured(engine)
        held = held_memory(pick_device("auto")) or 0
        yield {
            "what": f"{number} start, all captured",
            "seconds": time.monotonic() - began,
            "graphs": f"{made.graphs[0]}, {ready.graphs} of them before",
            "GB taken for the others": (held - memory) / 1e9,
            "held GB": held / 1e9,
        }
        del made
        engine.close(None)
        del engine
