"""Memory that the engine uses, over the memory that it states: python -m benchmarks.measure_memory.

Resident memory of a process that has answered, less that of the same process with everything imported and nothing
loaded, over the sum of the weights' file, the head and the cache. Only the parts of a cache that were written
take memory, so it is measured once after a few replies and once with all of the cache written.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import psutil

from specchat.engine import Engine, EngineConfig, Sampling
from specchat.engine.models import DEFAULT_PRESET
from specchat.engine.progress import Progress, size_text
from specchat.engine.tools.bench.suite import measure
from specchat.engine.tools.prompts import Prompt
from specchat.engine.tools.runner import Variant
from specchat.engine.worker.assembly import Assembly, assemble

PROMPTS = list(map(Prompt, ("Say hello.", "Name three colours.", "What is 12 times 12?", "Why is the sky blue?")))
LIMIT = 1.15
CACHE_GB = 0.4


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=DEFAULT_PRESET)
    target: str = parser.parse_args().target
    torch_alone = subprocess.run(
        [sys.executable, "-c", "import torch, psutil; print(psutil.Process().memory_info().rss)"],
        capture_output=True,
        text=True,
        check=True,
    )
    made: list[Assembly] = []
    imported = 0

    def keep(config: EngineConfig, progress: Progress) -> Assembly:
        nonlocal imported
        imported = _resident()
        made.append(assemble(config, progress))
        return made[0]

    engine = Engine(EngineConfig(target, cache_memory=CACHE_GB), keep)
    engine.start()
    engine.wait_ready()
    measure(engine, Variant(engine.ready.drafters[0] if engine.ready else "none", None), PROMPTS, 4, Sampling(), 64)
    cache = made[0].target.cache.pool.bytes
    stated = made[0].weight_bytes + cache
    used = _resident()
    for layer in (*made[0].target.cache.keys, *made[0].target.cache.values):
        layer.zero_()
    written = _resident()
    engine.close()
    print(f"python with torch           {size_text(int(torch_alone.stdout))}")
    print(f"all that is imported        {size_text(imported)}")
    print(f"weights and head            {size_text(made[0].weight_bytes)}")
    print(f"cache, as it is stated      {size_text(cache)}")
    for name, held in (("after four replies", used), ("with all of the cache written", written)):
        for what, base in (("imports", imported), ("torch alone", int(torch_alone.stdout))):
            share = (held - base) / stated
            print(f"{name}: {size_text(held)}, beyond {what} {share:.2f} of what is stated (at most {LIMIT})")


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)


if __name__ == "__main__":
    main()
