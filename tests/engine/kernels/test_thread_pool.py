"""The threads of the kernels: who is not asked takes no part, and what fails on one of them fails the call."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from specchat.engine.kernels.build import SOURCE, compile_source, find_compiler, link


@pytest.mark.slow
def test_programs_next_to_this_file_find_no_mistake_in_the_pool(tmp_path: Path) -> None:
    """Each prints what it saw; in `late_threads` the race is rare, and a pass proves little."""
    compiler, machine = str(find_compiler()), platform.machine()
    pool = compile_source(SOURCE / "thread_pool.cpp", tmp_path, compiler, machine)
    for name, wanted in {
        "late_threads": "0\n",  # a thread that wakes up late takes no part in a job with fewer threads
        "limited_threads": "1 3 7 0\n",  # the first thread, the first two, all three: the limit may change at any time
        "throwing_pieces": "bad_alloc, 9\n",  # what a piece throws on another thread comes to the caller
        "fetching": "0\n",  # jobs are done while threads fetch memory that is freed
    }.items():
        own = compile_source(Path(__file__).with_name(f"{name}.cpp"), tmp_path, compiler, machine)
        link([pool, own], tmp_path / name, compiler)
        said = subprocess.run([tmp_path / name], capture_output=True, text=True, check=True).stdout
        assert (name, said) == (name, wanted)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not keep to RLIMIT_AS")
def test_a_call_that_memory_is_too_short_for_fails_as_the_device_does_and_the_next_succeeds() -> None:
    """A separate process with a limited address space; a verdict takes the size of its row in each thread."""
    script = """
import resource, torch
from specchat.engine.kernels.library import KernelMemoryError, library
from specchat.engine.kernels.round import RoundRows, RoundRules
from specchat.engine.kernels.library import c_settings
from specchat.engine import Sampling
size, few = 1 << 26, 1 << 10
logits = torch.zeros(size)
def drawn(size):
    memory = RoundRows(2, 1, RoundRules(size, 1, 2, 3))
    memory.fill(None, 0, threads=2)
    for i, row in enumerate(memory.rows):
        row.logits = logits.data_ptr()
        memory.set_row(i, [], [], None, sampling=c_settings(Sampling(temperature=1.0)), seed=i)
    library().c.sk_judge(memory.c.rows)
    return [row.last for row in memory.rows]
before = drawn(few)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (128 << 20), resource.RLIM_INFINITY))
try:
    drawn(size)
except torch.OutOfMemoryError as error:
    assert isinstance(error, KernelMemoryError)
    print(error)
print(drawn(few) == before, len(set(before)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "there is not enough memory to compute in: run fewer replies at once, or lower --context",
        "True 2",
    ], done.stderr
