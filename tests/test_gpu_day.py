"""The command that proves everything on a GPU: `python -m benchmarks.gpu_day`."""

import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.gpu_day.__main__ import run
from tests.waiting import until


def test_what_a_section_has_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, number = tmp_path / "python", tmp_path / "number"
    program.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {number}\nwait\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    assert run(["machine"], tmp_path, 1) == {"machine": "stopped after 1 s"}
    left = int(number.read_text())
    until(lambda: not is_running(left))  # a killed process takes a moment to end


def is_running(pid: int) -> bool:
    """Whether there is such a process that has not ended; an ended one may wait to be collected."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
