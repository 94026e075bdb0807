"""The threads of the kernels: who is not asked takes no part."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest

from specchat.engine.kernels.build import SOURCE, compile_source, find_compiler, link


@pytest.mark.slow
def test_a_thread_that_wakes_up_late_takes_no_part_in_a_job_with_fewer_threads(tmp_path: Path) -> None:
    """What a piece works in is there for the threads of its job alone; the race is rare, and a pass proves little."""
    compiler, program = str(find_compiler()), tmp_path / "late_threads"
    sources = SOURCE / "thread_pool.cpp", Path(__file__).with_name("late_threads.cpp")
    link([compile_source(each, tmp_path, compiler, platform.machine()) for each in sources], program, compiler)
    assert subprocess.run([program], capture_output=True, text=True, check=True).stdout == "0\n"
