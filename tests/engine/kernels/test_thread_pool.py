"""The threads of the kernels: who is not asked takes no part, and what fails on one of them fails the call."""

import platform
import subprocess
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
