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

from specchat.engine import EngineConfig, Sampling
from specchat.engine.models import DEFAULT_PRESET
from specchat.engine.progress import Progress, size_text
from specchat.engine.tools.bench.suite import measure
from specchat.engine.tools.prompts import Prompt
from specchat.engine.tools.runner import Variant, running
from specchat.engine.worker.assembly import Assembly, assemble

PROMPTS = list(map(Prompt, ("Say hello.", "Name three colours.", "What is 12 times 12?", "Why is the sky blue?")))
LIMIT = 1.15
CACHE_GB = 0.4


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=DEFAULT_PRESET)
    target: str = parser.parse_args().target
    code = "import torch, psutil; print(psutil.Process().memory_info().rss)"
    torch_alone = int(subprocess.check_output([sys.executable, "-c", code]))
    imported = 0

    def load(config: EngineConfig, progress: Progress) -> Assembly:
        nonlocal imported
        imported = _resident()
        return assemble(config, progress)

    with running(EngineConfig(target, cache_memory=CACHE_GB), load) as (engine, ready, made):
        measure(engine, Variant(ready.drafters[0], None), PROMPTS, 4, Sampling(), 64)
        cache = made.target.cache.pool.bytes
        stated = made.weight_bytes + cache
        used = _resident()
        for layer in (*made.target.cache.keys, *made.target.cache.values):
            layer.zero_()
        written = _resident()
    print(f"python with torch           {size_text(torch_alone)}")
    print(f"all that is imported        {size_text(imported)}")
    print(f"weights and head            {size_text(made.weight_bytes)}")
    print(f"cache, as it is stated      {size_text(cache)}")
    for name, held in (("after four replies", used), ("with all of the cache written", written)):
        for what, base in (("imports", imported), ("torch alone", torch_alone)):
            share = (held - base) / stated
            print(f"{name}: {size_text(held)}, beyond {what} {share:.2f} of what is stated (at most {LIMIT})")


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)


if __name__ == "__main__":
    main()
