"""The threads of the kernels: who is not asked takes no part, and what fails on one of them fails the call."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from specchat.engine.kernels.build import SOURCE, compile_source, find_compiler, link


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pool, compiled."""
    folder = tmp_path_factory.mktemp("pool")
    return compile_source(SOURCE / "thread_pool.cpp", folder, str(find_compiler()), platform.machine())


def output_of(name: str, pool: Path) -> str:
    """Output of a program next to this file, linked with the pool."""
    compiler, program = str(find_compiler()), pool.parent / name
    own = compile_source(Path(__file__).with_name(f"{name}.cpp"), pool.parent, compiler, platform.machine())
    link([pool, own], program, compiler)
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_a_thread_that_wakes_up_late_takes_no_part_in_a_job_with_fewer_threads(pool: Path) -> None:
    """What a piece works in is there for the threads of its job alone; the race is rare, and a pass proves little."""
    assert output_of("late_threads", pool) == "0\n"


@pytest.mark.slow
def test_threads_beyond_a_limit_take_no_part_and_it_may_change_at_any_time(pool: Path) -> None:
    """1, 3 and 7: the first thread, the first two, all three."""
    assert output_of("limited_threads", pool) == "1 3 7 0\n"


@pytest.mark.slow
def test_what_a_piece_throws_on_another_thread_comes_to_the_caller(pool: Path) -> None:
    assert output_of("throwing_pieces", pool) == "bad_alloc, 9\n"


@pytest.mark.slow
def test_jobs_are_done_while_threads_fetch_memory_that_is_freed_meanwhile(pool: Path) -> None:
    assert output_of("fetching", pool) == "0\n"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not keep to RLIMIT_AS")
def test_a_call_that_memory_is_too_short_for_fails_as_the_device_does_and_the_next_succeeds() -> None:
    """In a separate process with a limited address space; a draw takes the size of its row in each thread."""
    script = """
import resource, torch
from specchat.engine.kernels.library import KernelMemoryError
from specchat.engine.kernels.sampling import DrawRequest, draw
from specchat.engine import Sampling
size, few = 1 << 26, 1 << 10
logits, q = torch.zeros(size), torch.zeros(size)
def drawn(size):
    return draw([DrawRequest(logits[:size], Sampling(temperature=1.0), [0.5], q[:size]) for _ in range(2)], threads=2)
drawn(few)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (128 << 20), resource.RLIM_INFINITY))
try:
    drawn(size)
except torch.OutOfMemoryError as error:
    assert isinstance(error, KernelMemoryError)
    print(error)
print(drawn(few))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "there is not enough memory to compute in: run fewer replies at once, or lower --context",
        "[[512], [512]]",
    ], done.stderr
